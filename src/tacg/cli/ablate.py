"""Ablation: measure what each part of the gate does."""

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
    SettingOptions,
    Split,
    Tasks,
    load_model,
    present,
    progress,
    ready_directory,
    shared_settings,
)

EPILOG = """[bold]Examples[/bold]

tacg ablate --n 200

tacg ablate --task pocket-math --policy tacg:runs/tune/pocket-math.toml --n 1000

tacg ablate --set gen_length=192 --out runs/ablate-long     (the paper's Table 4: twice the length)"""


def main(
    task: Tasks = None,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", "-p", help="Gated policies; default: tacg and tacg+klass.")
    ] = None,
    n: N = 200,
    seed: Seed = 0,
    split: Split = "test",
    model: Model = DEFAULT_MODEL,
    setting: SettingOptions = None,
    batch_size: BatchSize = 32,
    out: Out = Path("runs/ablate"),
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Baseline, History Gate alone, temporal support alone, both: accuracy, steps and per-step dynamics."""
    from tacg.experiments.ablate import PARTS, ablate, tables
    from tacg.experiments.grid import Sample
    from tacg.records.plots import draw_dynamics
    from tacg.records.rows import Ledger
    from tacg.tasks import get_task, task_names

    gates = policy or (["tacg"] if quick else ["tacg", "tacg+klass"])
    tasks = [get_task(name) for name in task or (["pocket-sudoku"] if quick else task_names())]
    n = min(n, 16) if quick else n
    settings = shared_settings(gates, setting or [])
    ledger = Ledger(ready_directory(out) / "rows.jsonl")
    llm = load_model(model)
    with progress("ablation", n * len(tasks) * len(gates) * (1 + len(PARTS))) as tick:
        sample = Sample(n, seed, split, batch_size)
        rows = ablate(llm, tasks, gates, sample, settings, ledger, tick)
    present("What each part of the gate does", rows, tables(rows), {"dynamics.png": draw_dynamics}, out, as_json)
