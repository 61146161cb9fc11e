"""Run every experiment of the paper and write the report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    BatchSize,
    Json,
    Model,
    Quick,
    Seed,
    Tasks,
    load_model,
    print_json,
    progress,
)

EPILOG = """[bold]Examples[/bold]

tacg report --quick

tacg report --dtype bfloat16          hours on a slow machine; stop it whenever you like, it goes on where it was"""


def main(
    task: Tasks = None,
    model: Model = DEFAULT_MODEL,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    seed: Seed = 0,
    batch_size: BatchSize = 32,
    home: Annotated[
        Path | None, typer.Option(help="Directory of rows and pictures; default: docs/results, --quick: runs/glance.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The report; default: beside the directory.")] = None,
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Comparison with the whole frontier, ablation, signals, sensitivity, length, tuning: rows first, then a report."""
    from tacg.experiments.study import Scale, Study
    from tacg.tasks import get_task, task_names

    tasks = [get_task(name) for name in task or (["pocket-sudoku"] if quick else task_names())]
    scale = Scale.glance() if quick else Scale()
    llm = load_model(model, dtype=dtype)
    home = home or Path("runs/glance" if quick else "docs/results")
    study = Study(llm, tasks, scale, home, progress, seed, batch_size)
    made = study.report(out or home.with_suffix(".md"))
    files = {"report": made, "page": made.with_suffix(".html"), "rows": study.ledger.path}
    for what, path in files.items():
        typer.secho(f"{what}: {path}", err=True)
    if as_json:
        print_json({what: str(path) for what, path in files.items()})
