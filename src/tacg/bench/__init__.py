"""Benchmarks: each prints ratios against a named baseline of the same run and appends its rows."""
