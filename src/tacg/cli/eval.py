"""Decode a task's problems with a policy and grade the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    BatchSize,
    Json,
    Model,
    Seed,
    Settings,
    Split,
    load_model,
    parse_settings,
    print_json,
    progress,
)

EPILOG = """[bold]Examples[/bold]

tacg eval --task pocket-math --policy tacg --n 200 --seed 7

tacg eval --task pocket-sudoku --policy confidence --set threshold=0.7 --json

tacg eval --task pocket-code --policy schedule --split dev --out runs/code.jsonl"""


def main(
    task: Annotated[str, typer.Option("--task", "-t", help="See [cyan]tacg tasks[/cyan].")],
    policy: Annotated[str, typer.Option("--policy", "-p", help="See [cyan]tacg policies[/cyan].")] = "tacg",
    n: Annotated[int, typer.Option(help="Problems.", min=1)] = 100,
    seed: Seed = 0,
    split: Split = "test",
    model: Model = DEFAULT_MODEL,
    setting: Settings = None,
    batch_size: BatchSize = 32,
    out: Annotated[Path | None, typer.Option(help="Append the row to this JSONL file.")] = None,
    as_json: Json = False,
) -> None:
    """Grade a policy on a task."""
    from tacg.experiments.compare import write_rows
    from tacg.experiments.evaluate import evaluate
    from tacg.tasks import get_task

    chosen, settings = get_task(task), parse_settings(policy, setting or [])
    llm = load_model(model)
    with progress(f"{task} · {policy}", n) as tick:
        row = evaluate(
            llm, chosen, policy, n=n, seed=seed, split=split, batch_size=batch_size, settings=settings,
            on_item=lambda item: tick(item.correct),
        ).row  # fmt: skip
    if out is not None:
        write_rows(out, [row])
    if as_json:
        print_json(row)
    else:
        from tacg.cli.compare import show_table

        show_table([row])
