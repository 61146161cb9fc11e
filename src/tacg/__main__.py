"""`python -m tacg`, and the command `tacg`."""

from tacg.cli.interrupt import ended_by_signals


def run() -> None:
    """Run the command line; what is typed at a terminal too early ends it without a word."""
    with ended_by_signals():
        from tacg.cli.main import run
    run()


if __name__ == "__main__":
    run()
