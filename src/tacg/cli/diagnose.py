"""Find out which signals tell right proposals from wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    BatchSize,
    Json,
    Model,
    N,
    Out,
    Quick,
    Seed,
    Split,
    Tasks,
    load_model,
    present,
    progress,
    ready_directory,
)

EPILOG = """[bold]Examples[/bold]

tacg diagnose --n 100

tacg diagnose --task pocket-math --policy confidence --target reference"""


def main(
    task: Tasks = None,
    policy: Annotated[str, typer.Option("--policy", "-p", help="Policy whose trajectories are analysed.")] = "schedule",
    target: Annotated[str, typer.Option(help="What a proposal must match: final or reference.")] = "final",
    n: N = 100,
    seed: Seed = 0,
    split: Split = "dev",
    model: Model = DEFAULT_MODEL,
    batch_size: BatchSize = 32,
    out: Out = Path("runs/diagnose"),
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Match rates of proposals by streak, support, margin, entropy and KL, within bins of confidence."""
    import functools

    from tacg.errors import unknown
    from tacg.experiments.diagnose import TARGETS, diagnose, tables
    from tacg.experiments.grid import Sample
    from tacg.policies import get_policy
    from tacg.records.bins import SIGNALS
    from tacg.records.plots import draw_match
    from tacg.records.rows import Ledger
    from tacg.tasks import get_task, task_names

    if target not in TARGETS:
        raise unknown("target", target, TARGETS)
    get_policy(policy)  # complain before anything is loaded
    tasks = [get_task(name) for name in task or (["pocket-sudoku"] if quick else task_names())]
    n = min(n, 16) if quick else n
    ledger = Ledger(ready_directory(out) / "rows.jsonl")
    llm = load_model(model)
    with progress("diagnosis", n * len(tasks)) as tick:
        sample = Sample(n, seed, split, batch_size)
        rows = diagnose(llm, tasks, policy, sample, ledger, tick)
    draw = {"match.png": functools.partial(draw_match, target=target)}
    present("Which signal carries what", rows, tables(rows, target, list(SIGNALS)), draw, out, as_json)
