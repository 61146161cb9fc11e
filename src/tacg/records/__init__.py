"""Rows of results and what is made from them: files, tables, plots. Used by experiments, benchmarks and `scale`."""
