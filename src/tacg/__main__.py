"""`python -m tacg`: the same as the command `tacg`."""

from tacg.cli.main import run

run()
