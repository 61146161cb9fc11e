"""`tacg`: one verb per file. Nothing heavy is imported before a verb needs it."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated, NoReturn

import typer

from tacg.cli import (
    ablate,
    arena,
    bench,
    chat,
    compare,
    convert,
    diagnose,
    doctor,
    eval,
    generate,
    grade,
    judges,
    law,
    models,
    policies,
    recommend,
    report,
    reproduce,
    serve,
    sweep,
    table,
    tasks,
    trace,
    tune,
)
from tacg.cli.plain import speak_to_any_terminal
from tacg.errors import TacgError
from tacg.version import __version__

app = typer.Typer(
    name="tacg",
    help="Decode diffusion language models, and see when and why each token is committed.",
    epilog="Start with:  tacg eval --task pocket-sudoku --n 1 --watch\n\nCompletion of names in your shell:  "
    "tacg --install-completion",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for verb in (
    generate,
    chat,
    eval,
    grade,
    compare,
    arena,
    recommend,
    ablate,
    sweep,
    diagnose,
    law,
    tune,
    table,
    reproduce,
    report,
    trace,
    serve,
    bench,
    policies,
    models,
    judges,
    convert,
    tasks,
    doctor,
):
    app.command(name=verb.__name__.rpartition(".")[2], help=verb.__doc__, epilog=verb.EPILOG)(verb.main)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tacg {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Handle the options that do not belong to a verb."""


def run() -> None:
    """Entry point of the console script: a user's mistake is one line, not a traceback."""
    speak_to_any_terminal()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # a full disk must raise here, not at exit
    except TacgError as error:
        _complain(str(error))
    except OSError as error:
        about = f"{str(error.filename)!r}: " if error.filename else ""
        _complain(f"{about}{error.strerror or error}. Fix that and try again.")


def _complain(told: str) -> NoReturn:
    with contextlib.suppress(OSError):
        typer.secho(f"error: {told}", fg="red", err=True)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.exit(2)
    os._exit(2)  # what stdout has buffered cannot be written, and Python would try again at exit
