"""Stands in for vLLM, of whose kernels SGLang wants one on a CPU."""
