"""Compare policies on the same problems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    BatchSize,
    CacheMode,
    Compiled,
    Data,
    Device,
    Dtype,
    Graphed,
    Json,
    Model,
    N,
    Quantize,
    Seed,
    SettingOptions,
    Split,
    TaskKnobs,
    Tasks,
    Verifier,
    load_model,
    load_tasks,
    parse_settings,
    policy_option,
    ready_directory,
    tasks_asked,
)
from tacg.cli.shown import present, progress, say

EPILOG = """[bold]Examples[/bold]

tacg compare --n 100

tacg compare --task pocket-math --policy confidence --policy tacg --policy tacg+klass --n 500 --json

tacg compare --policy confidence --policy tacg --set threshold=0.8 --out runs/loose

tacg compare --model rxnmapper --task reactions --policy confidence --policy tacg --n 64"""


def main(
    task: Tasks = None,
    policy: Annotated[
        list[str] | None, policy_option("Policy to run; repeatable; default: confidence, klass, and TACG over each.")
    ] = None,
    n: N = 100,
    seed: Seed = 0,
    split: Split = "test",
    model: Model = DEFAULT_MODEL,
    verifier: Verifier = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    quantize: Quantize = None,
    compiled: Compiled = False,
    graphs: Graphed = False,
    data: Data = None,
    knob: TaskKnobs = None,
    setting: SettingOptions = None,
    cache: CacheMode = None,
    batch_size: BatchSize = 32,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for rows.jsonl and plane.png; existing rows are not decoded again."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare policies on tasks: accuracy, steps, tokens per forward, and what the gate changes."""
    from tacg.experiments.compare import DEFAULT_POLICIES, compare, tables
    from tacg.experiments.grid import Sample
    from tacg.experiments.verdict import in_words
    from tacg.records.plots import draw_plane
    from tacg.records.rows import Ledger

    policies = policy or list(DEFAULT_POLICIES)
    tasks = load_tasks(tasks_asked(task, model), data, knob, model)
    settings = parse_settings(policies, setting, cache)
    ledger = Ledger(ready_directory(out) / "rows.jsonl" if out is not None else None)
    llm = load_model(
        model, dtype=dtype, device=device, verifier=verifier, quantize=quantize, compiled=compiled, graphs=graphs
    )
    with progress("comparing", n * len(policies) * len(tasks)) as tick:
        sample = Sample(n, seed, split, batch_size)
        rows = compare(llm, tasks, policies, sample, settings, ledger, tick)
    draw = {"plane.png": draw_plane} if out is not None else {}
    present("Policies side by side", rows, tables(rows), draw, out, as_json)
    say("", *in_words(rows), aside=as_json)
