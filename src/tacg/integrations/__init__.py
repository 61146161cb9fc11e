"""Other people's tools and engines: lm-evaluation-harness, SGLang, transformers, diffusers, dInfer; an extra for each."""
