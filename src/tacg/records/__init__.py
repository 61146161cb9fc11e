"""Rows of results and what is made of them: files, tables, plots. Experiments, benches and `scale` build on it."""
