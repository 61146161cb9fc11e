"""Measure what this machine does with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacg.cli.common import Json, Quick, present
from tacg.errors import TacgError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tacg.experiments.rows import Row

KINDS = ("cache", "load")
EPILOG = """[bold]Examples[/bold]

tacg bench cache                             what each cache saves, over the length of the prompt

tacg bench cache --prompts 256,1024 --json

tacg bench load --gigabytes 2                peak memory of loading a checkpoint, over its size"""


def main(
    kind: Annotated[str, typer.Argument(help=f"One of {', '.join(KINDS)}.")],
    prompts: Annotated[str, typer.Option(help="cache: prompt lengths, with commas.")] = "256,512,1024,2048",
    gen_length: Annotated[int, typer.Option(help="cache: positions to generate.", min=8)] = 64,
    gigabytes: Annotated[float, typer.Option(help="load: size of the checkpoint.", min=0.01)] = 2.0,
    out: Annotated[Path | None, typer.Option(help="Directory for rows and page; default: runs/bench-KIND.")] = None,
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Benchmarks: ratios against a baseline of the same run; rows are appended."""
    from tacg.bench import cache, load
    from tacg.experiments.picture import draw_gain

    out = out or Path(f"runs/bench-{kind}")
    if kind == "cache":
        lengths = _lengths(prompts)[: 2 if quick else None]
        rows = _collect(cache.measure(lengths, gen_length, quick=quick), 5 * len(lengths), out)
        present("What a cache saves", rows, cache.tables(rows), {"gain.png": draw_gain}, out, as_json)
    elif kind == "load":
        rows = _collect(load.measure(0.05 if quick else gigabytes), 2, out)
        present("What loading costs", rows, load.tables(rows), {}, out, as_json)
    else:
        raise unknown("benchmark", kind, KINDS)


def _collect(made: Iterable[Row], total: int, out: Path) -> list[Row]:
    """The rows under a bar, each written as soon as it is there."""
    from rich.console import Console
    from rich.progress import track

    from tacg.experiments.rows import write_rows

    rows: list[dict[str, Any]] = []
    for row in track(made, "measuring", total=total, console=Console(stderr=True), transient=True):
        write_rows(out / "rows.jsonl", [row])
        rows.append(row)
    return rows


def _lengths(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise TacgError(f"`--prompts` must be whole numbers with commas between, got {text!r}.") from None
