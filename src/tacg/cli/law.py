"""Ask when the trajectory helps: gains over whole frontiers, controls, and features that need no labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacg.cli import complete
from tacg.cli.common import (
    DEFAULT_MODEL,
    BatchSize,
    CacheMode,
    Data,
    Device,
    Dtype,
    Jobs,
    Json,
    N,
    Quick,
    Redraw,
    Seed,
    SettingOptions,
    Share,
    Split,
    TaskKnobs,
    load_model,
    load_tasks,
    parse_settings,
    ready_directory,
    words_of,
)
from tacg.cli.shown import print_json, progress, show_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.experiments.grid import Sample
    from tacg.tasks import Task

EPILOG = """[bold]Examples[/bold]

tacg law --quick

tacg law --model rxnmapper --model pocket --n 120 --jobs 2 --out docs/results

tacg law --model rxnfp --task reactions --knob masked=0.4 --out docs/results

tacg law --out docs/results --redraw                     draw report and law.json from rows"""


def main(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Built-in model, judge, directory or hub id; repeatable.",
            autocompletion=complete.models,
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            "-t",
            help="Repeatable; default: a judge's own, for others those of pocket.",
            autocompletion=complete.tasks,
        ),
    ] = None,
    n: N = 300,
    seed: Seed = 0,
    split: Split = "test",
    dtype: Dtype = "float32",
    device: Device = "cpu",
    data: Data = None,
    knob: TaskKnobs = None,
    setting: SettingOptions = None,
    cache: CacheMode = None,
    batch_size: BatchSize = 32,
    jobs: Jobs = 1,
    out: Annotated[
        Path | None, typer.Option(help="Directory for rows and law.json; the report goes beside it; default: runs/law.")
    ] = None,
    ship: Annotated[
        Path | None, typer.Option(help="Also write the law here; the package's own is src/tacg/experiments/law.json.")
    ] = None,
    redraw: Redraw = False,
    quick: Quick = False,
    share: Share = "",
    as_json: Json = False,
) -> None:
    """Measure what TACG and its parts gain over whole frontiers, and fit a rule that predicts the gain without labels.

    Stop it at any time and run it again to continue. Rows of other models and tasks in the same directory stay.
    """
    from tacg.cli.parallel_runs import run_apart
    from tacg.experiments.grid import Sample
    from tacg.experiments.law import tasks_for

    out = ready_directory(out or Path("runs/law-quick" if quick else "runs/law"))
    n = min(n, 4) if quick else n
    asked = list(dict.fromkeys(model or [DEFAULT_MODEL]))
    planned = [
        (each, one)
        for each in asked
        for one in load_tasks(task or [own.name for own in tasks_for(each)[: 1 if quick else None]], data, knob)
    ]
    settings = parse_settings("tacg", setting, cache)
    try:
        if jobs > 1 and not redraw:
            words = words_of(
                model=asked, task=task, n=n, seed=seed, split=split, dtype=dtype, device=device, data=data, knob=knob,
                set=setting, cache=cache, batch_size=batch_size, out=out, quick=quick,
            )  # fmt: skip
            shares = {f"{part + 1} of {jobs}": ["law", *words, "--share", f"{part}/{jobs}"] for part in range(jobs)}
            run_apart(shares, jobs, out / "rows.jsonl")
        elif not redraw:
            part, parts = (int(word) for word in (share or "0/1").split("/"))
            sample = Sample(n, seed, split, batch_size, settings=settings)
            _measure(planned[part::parts], sample, out, quick, dtype, device)
    except KeyboardInterrupt:
        typer.secho("stopped; run the same command again to continue", err=True)
        raise typer.Exit(130) from None
    if not share:
        _show(out, ship, as_json)


def _measure(
    planned: Sequence[tuple[str, Task]], sample: Sample, out: Path, quick: bool, dtype: str, device: str
) -> None:
    """Decode what is missing, one cell after the other."""
    from tacg.experiments.law import measure, plan
    from tacg.records.rows import Ledger

    ledger, name, llm = Ledger(out / "rows.jsonl"), "", None
    for model, task in planned:
        if llm is None or model != name:
            name, llm = model, load_model(model, dtype=dtype, device=device)
        with progress(f"{model} · {task.name}", sample.n * (len(plan(task, quick)) + 1)) as tick:
            measure(llm, task, sample, ledger, tick, quick)


def _show(out: Path, ship: Path | None, as_json: bool) -> None:
    """Law, report and tables from existing rows."""
    from tacg.experiments.law import cells_of
    from tacg.experiments.law_fit import ANSWERED, law_of, write_law
    from tacg.experiments.law_report import adds, gain_table, said, write_report
    from tacg.records.rows import Ledger
    from tacg.records.tables import provenance

    rows = Ledger(out / "rows.jsonl").rows.values()
    cells, waiting = cells_of(rows)
    law, answered = law_of(cells), [cell for cell in cells if cell["score"] >= ANSWERED]
    files = {"rows": out / "rows.jsonl", "law": out / "law.json", "report": out.with_name(f"{out.name}.md")}
    for path in (files["law"], *([ship] if ship else [])):
        write_law(law, path)
    write_report(answered, law, files["report"], out / "law.png", waiting)
    if as_json:
        named = {what: str(path) for what, path in files.items()}
        print_json({"cells": cells, "law": law, "waiting": waiting, "files": named})
    else:
        show_tables([gain_table(answered, "gained", brief=True)], provenance(answered))
        typer.echo(f"{adds(answered)}\n\n{said(law)}")
    for what, path in files.items():
        typer.secho(f"{what}: {path}", err=True)
