"""Experiments: each writes rows; every table and picture is drawn from rows."""
