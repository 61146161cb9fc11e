"""`python -m tacg`, and the command `tacg`."""

from tacg.cli.interrupt import ended_by_signals


def run() -> None:
    """Run the command line; Ctrl-C while it is still loading ends it without a message."""
    with ended_by_signals():
        from tacg.cli.main import run
    run()


if __name__ == "__main__":
    run()
