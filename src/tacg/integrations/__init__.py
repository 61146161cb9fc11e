"""Other people's tools and engines: lm-evaluation-harness, SGLang, transformers, dInfer. Each has its own extra."""
