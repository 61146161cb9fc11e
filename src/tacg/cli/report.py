"""Run every experiment of the paper and write the report."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    BatchSize,
    CacheMode,
    Data,
    Device,
    Dtype,
    Jobs,
    Json,
    Model,
    Quantize,
    Quick,
    Seed,
    SettingOptions,
    TaskKnobs,
    Tasks,
    Verifier,
    load_model,
    load_tasks,
    parse_settings,
    ready_directory,
    tasks_asked,
    words_of,
)
from tacg.cli.shown import print_json, progress

EPILOG = """[bold]Examples[/bold]

tacg report --quick

tacg report --dtype bfloat16 --jobs 3          stop at any time; run again to continue"""


def main(
    task: Tasks = None,
    model: Model = DEFAULT_MODEL,
    verifier: Verifier = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    quantize: Quantize = None,
    data: Data = None,
    knob: TaskKnobs = None,
    setting: SettingOptions = None,
    cache: CacheMode = None,
    seed: Seed = 0,
    batch_size: BatchSize = 32,
    home: Annotated[
        Path | None, typer.Option(help="Directory for rows and plots; default: runs/report, --quick: runs/glance.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Report file; default: next to the directory.")] = None,
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Comparison with the whole frontier, ablation, signals, sensitivity, length, tuning: rows first, then a report."""
    from tacg.cli.parallel_runs import run_apart
    from tacg.experiments.paper_report import write_report
    from tacg.experiments.paper_study import Scale, Study
    from tacg.files import make_room

    tasks = load_tasks(tasks_asked(task, model, quick), data, knob, model)
    settings = parse_settings("tacg+klass", setting, cache)
    scale = Scale.glance() if quick else Scale()
    home = ready_directory(home or Path("runs/glance" if quick else "runs/report"))
    out = out or home.with_suffix(".md")
    make_room(out)
    if jobs > 1:
        words = ["report", *words_of(
            model=model, verifier=verifier, dtype=dtype, device=device, data=data, knob=knob, set=setting, cache=cache,
            seed=seed, batch_size=batch_size, home=home, quick=quick, quantize=quantize,
        )]  # fmt: skip
        with tempfile.TemporaryDirectory() as scratch:  # for reports of one task: the whole one is drawn from all rows
            commands = {each.name: [*words, "-t", each.name, "--out", f"{scratch}/{each.name}.md"] for each in tasks}
            run_apart(commands, jobs, home / "rows.jsonl")
    llm = load_model(model, dtype=dtype, device=device, verifier=verifier, quantize=quantize)
    study = Study(llm, tasks, scale, home, progress, seed, batch_size, settings)
    written = write_report(study, out)
    files = {"report": written, "page": written.with_suffix(".html"), "rows": study.ledger.path}
    for what, path in files.items():
        typer.secho(f"{what}: {path}", err=True)
    if as_json:
        print_json({what: str(path) for what, path in files.items()})
