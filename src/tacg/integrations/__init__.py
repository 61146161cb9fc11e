"""Other tools and engines, each with its own extra: lm-eval, SGLang, transformers, diffusers, dInfer."""
