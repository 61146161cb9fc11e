"""Ablation: measure what each part of the gate does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    Out,
    Quantize,
    Quick,
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
from tacg.cli.shown import present, progress

EPILOG = """[bold]Examples[/bold]

tacg ablate --n 200

tacg ablate --task pocket-math --policy tacg:runs/tune/pocket-math.toml --n 1000

tacg ablate --set gen_length=192 --out runs/ablate-long     (the paper's Table 4: twice the length)"""


def main(
    task: Tasks = None,
    policy: Annotated[list[str] | None, policy_option("Gated policies; default: tacg and tacg+klass.")] = None,
    n: N = 200,
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
    out: Out = Path("runs/ablate"),
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Baseline, History Gate alone, temporal support alone, both: accuracy, steps and per-step dynamics."""
    from tacg.experiments.ablate import PARTS, ablate, tables
    from tacg.experiments.grid import Sample
    from tacg.records.plots import draw_dynamics
    from tacg.records.rows import Ledger

    gates = policy or (["tacg"] if quick else ["tacg", "tacg+klass"])
    tasks = load_tasks(tasks_asked(task, model, quick), data, knob, model)
    n = min(n, 16) if quick else n
    settings = parse_settings(gates, setting, cache)
    ledger = Ledger(ready_directory(out) / "rows.jsonl")
    llm = load_model(
        model, dtype=dtype, device=device, verifier=verifier, quantize=quantize, compiled=compiled, graphs=graphs
    )
    with progress("ablation", n * len(tasks) * len(gates) * (1 + len(PARTS))) as tick:
        sample = Sample(n, seed, split, batch_size)
        rows = ablate(llm, tasks, gates, sample, settings, ledger, tick)
    present("What each part of the gate does", rows, tables(rows), {"dynamics.png": draw_dynamics}, out, as_json)
