"""Benchmarks: each prints ratios to a named baseline measured in the same run, and appends its rows."""
