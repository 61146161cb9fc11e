"""Experiments: each writes rows, and every table and plot is made from rows."""
