"""Convert a torch `.bin` checkpoint to safetensors, without running any code in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacg.cli.common import Json
from tacg.cli.shown import print_json

EPILOG = """[bold]Examples[/bold]

tacg convert ./my-bert                  writes ./my-bert/model.safetensors

tacg convert ./my-bert --force          writes it again"""


def main(
    directory: Annotated[Path, typer.Argument(help="Directory of a checkpoint with pytorch_model.bin.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model.safetensors.")] = False,
    as_json: Json = False,
) -> None:
    """Write model.safetensors next to the pickled weights of a checkpoint."""
    from tacg.models.convert import convert

    file, tensors = convert(directory.expanduser(), force=force)
    if as_json:
        print_json({"file": str(file), "tensors": tensors, "bytes": file.stat().st_size})
    else:
        typer.echo(f"{file}: {tensors} tensors, {file.stat().st_size / 1e6:.1f} MB")
