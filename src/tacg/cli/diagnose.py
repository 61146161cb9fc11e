"""Ask which signals tell right proposals from wrong ones, and whether the trajectory should help."""

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
    Out,
    Prompts,
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
from tacg.errors import TacgError

EPILOG = """[bold]Examples[/bold]

tacg diagnose --n 100

tacg diagnose --task pocket-math --policy confidence --target reference

tacg diagnose --prompts mine.txt --model ./LLaDA-8B-Instruct --set gen_length=256      your own prompts, one per line"""


def main(
    task: Tasks = None,
    prompts: Prompts = None,
    policy: Annotated[str, policy_option("Policy whose trajectories are analysed.")] = "schedule",
    target: Annotated[str, typer.Option(help="What a proposal must match: final or reference.")] = "final",
    n: N = 100,
    seed: Seed = 0,
    split: Split = "dev",
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
    law: Annotated[Path | None, typer.Option(help="A law.json of [cyan]tacg law[/cyan] (default: built in).")] = None,
    out: Out = Path("runs/diagnose"),
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Match rates of proposals by streak, support, margin, entropy and KL, within bins of confidence; and a verdict.

    The verdict needs no labels. It predicts what TACG gains on this model and these prompts, with which knobs, and how
    sure the prediction is.
    """
    import functools

    from tacg.errors import unknown
    from tacg.experiments.diagnose import TARGETS, diagnose, feature_table, tables
    from tacg.experiments.grid import Sample
    from tacg.experiments.law import CAREFUL
    from tacg.experiments.law_fit import in_words, read_law, verdict
    from tacg.records.bins import SIGNALS
    from tacg.records.plots import draw_match
    from tacg.records.rows import Ledger
    from tacg.tasks.prompts import OwnPrompts

    if target not in TARGETS:
        raise unknown("target", target, TARGETS)
    if prompts is not None and (task or target == "reference"):
        raise TacgError("--prompts takes the place of --task, and has no reference answers: leave out --target, too.")
    settings = parse_settings(policy, setting, cache)  # complain before anything is loaded
    known = read_law(law)
    own = [OwnPrompts(str(prompts))] if prompts is not None else []
    tasks = own or load_tasks(tasks_asked(task, model, quick), data, knob, model)
    n = min(n, 16) if quick else n
    ledger = Ledger(ready_directory(out) / "rows.jsonl")
    llm = load_model(
        model, dtype=dtype, device=device, verifier=verifier, quantize=quantize, compiled=compiled, graphs=graphs
    )
    with progress("diagnosis", n * len(tasks)) as tick:
        sample = Sample(n, seed, split, batch_size)
        rows = diagnose(llm, tasks, policy, sample, ledger, tick, settings)
    careful = policy == CAREFUL  # the law was measured on its proposals
    rows = [row | {"verdict": verdict(row["features"]["final"], known) if careful else []} for row in rows]
    draw = {"match.png": functools.partial(draw_match, target=target)}
    shown = [*tables(rows, target, list(SIGNALS)), feature_table(rows)]
    present("Which signal carries what", rows, shown, draw, out, as_json)
    for row in rows:
        words = in_words(row["verdict"], known) if careful else [f"No verdict: it needs --policy {CAREFUL}."]
        for line in words:
            typer.echo(f"{row['task']}: {line}", err=as_json)
