"""TACG inside other people's engines: SGLang, transformers, dInfer. Which one to take: docs/engines.md."""
