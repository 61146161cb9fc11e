"""Measure what this machine does with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacg.cli.common import Json, Out, Quick, present
from tacg.errors import unknown

KINDS = ("cache",)
EPILOG = """[bold]Examples[/bold]

tacg bench cache

tacg bench cache --prompts 256,1024 --json"""


def main(
    kind: Annotated[str, typer.Argument(help=f"One of {', '.join(KINDS)}.")],
    prompts: Annotated[str, typer.Option(help="Prompt lengths, with commas.")] = "256,512,1024,2048",
    gen_length: Annotated[int, typer.Option(help="Positions to generate.", min=8)] = 64,
    out: Out = Path("runs/bench-cache"),
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Benchmarks: ratios against a baseline of the same run; rows are appended."""
    from rich.console import Console
    from rich.progress import Progress

    from tacg.bench.cache import measure, tables
    from tacg.experiments.picture import draw_gain
    from tacg.experiments.rows import write_rows

    if kind not in KINDS:
        raise unknown("benchmark", kind, KINDS)
    lengths = [int(word) for word in prompts.split(",")]
    lengths = lengths[:2] if quick else lengths
    rows = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("", total=5 * len(lengths))
        for row in measure(
            lengths, gen_length, quick=quick, tick=lambda what: bar.update(line, advance=1, description=what)
        ):
            write_rows(out / "rows.jsonl", [row])
            rows.append(row)
    present("What a cache saves", rows, tables(rows), {"gain.png": draw_gain}, out, as_json)
