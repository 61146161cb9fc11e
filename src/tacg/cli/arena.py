"""Compare all decoders on the same problems: each over its main knob, and TACG over each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    N,
    Quantize,
    Quick,
    Redraw,
    Seed,
    SettingOptions,
    Share,
    Split,
    TaskKnobs,
    Tasks,
    Verifier,
    as_typed,
    load_model,
    load_tasks,
    parse_settings,
    policy_option,
    ready_directory,
    tasks_asked,
    words_of,
)
from tacg.cli.shown import LONG, print_json, progress, show_tables
from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.experiments.grid import Cell, Sample
    from tacg.llm import LLM

EPILOG = """[bold]Examples[/bold]

tacg arena --quick

tacg arena --n 500 --dtype bfloat16 --jobs 2       stop at any time; run again to continue

tacg arena -p klass -p tacg+klass -t pocket-math   only these

tacg arena --out docs/arena --redraw               draw report and page from existing rows; decode nothing"""


def main(
    task: Tasks = None,
    policy: Annotated[
        list[str] | None,
        policy_option("Policy to run; repeatable; default: all, and TACG over each.", "--policy", "--policies", "-p"),
    ] = None,
    n: N = 200,
    seed: Seed = 0,
    split: Split = "test",
    model: Model = DEFAULT_MODEL,
    verifier: Verifier = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    quantize: Quantize = None,
    data: Data = None,
    knob: TaskKnobs = None,
    setting: SettingOptions = None,
    cache: CacheMode = None,
    batch_size: BatchSize = 32,
    jobs: Jobs = 1,
    values: Annotated[
        int | None, typer.Option(help="Values of each decoder's main knob, its default first; default: all.", min=1)
    ] = None,
    over: Annotated[
        int | None, typer.Option(help="The same for TACG over a decoder; 0 leaves it out; default: all.", min=0)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for rows and page; the report goes next to it; default: runs/arena.")
    ] = None,
    redraw: Redraw = False,
    quick: Quick = False,
    share: Share = "",
    as_json: Json = False,
) -> None:
    """Compare all decoders: accuracy against steps, computed positions and seconds, over their whole frontiers."""
    from tacg.cli.parallel_runs import run_apart
    from tacg.experiments.arena import CAREFUL, EVERY, FEW, cells, decoders
    from tacg.experiments.grid import Sample
    from tacg.policies import get_policy

    out = ready_directory(out or Path("runs/arena-quick" if quick else "runs/arena"))
    specs = [get_policy(each).label for each in policy or decoders()]
    names = tasks_asked(task, model, quick)
    tasks, settings = load_tasks(names, data, knob, model), parse_settings(specs, setting, cache)
    n = min(n, 4) if quick else n
    most = FEW if quick else EVERY
    points = (most[0] if values is None else values, most[1] if over is None else over)
    measure = [] if CAREFUL in specs else cells(tasks, [CAREFUL], (1, 0))  # what all others are compared with
    planned = [*measure, *cells(tasks, specs, points)]
    try:
        if jobs > 1 and not redraw:
            words = words_of(
                model=model, verifier=verifier, dtype=dtype, device=device, quantize=quantize, data=data, knob=knob,
                set=setting, cache=cache, n=n, seed=seed, split=split, batch_size=batch_size, out=out, quick=quick,
                values=points[0], over=points[1], task=names, policy=[as_typed(each) for each in specs],
            )  # fmt: skip
            shares = {f"{part + 1} of {jobs}": ["arena", *words, "--share", f"{part}/{jobs}"] for part in range(jobs)}
            run_apart(shares, jobs, out / "rows.jsonl")
        elif not redraw:
            part, parts = (int(word) for word in (share or "0/1").split("/"))
            llm = load_model(model, dtype=dtype, device=device, verifier=verifier, quantize=quantize)
            _play(llm, planned[part::parts], Sample(n, seed, split, batch_size, settings=settings), out)
    except KeyboardInterrupt:
        typer.secho("stopped; run the same command again to continue", err=True)
        _show(out, as_json)
        raise typer.Exit(130) from None
    if not share:
        _show(out, as_json)


def _play(llm: LLM, cells: Sequence[Cell], sample: Sample, out: Path) -> None:
    """Decode what is missing. A decoder that does not work with this model is left out, with a message."""
    from tacg.experiments.arena import is_known
    from tacg.experiments.grid import run
    from tacg.records.rows import Ledger

    ledger, refused = Ledger(out / "rows.jsonl"), dict[str, TacgError]()
    cells = [cell for cell in cells if not is_known(llm, cell, sample, ledger)]
    with progress("arena", sample.n * len(cells)) as tick:
        for cell in cells:
            try:
                run(llm, [cell], sample, ledger, tick)
            except TacgError as error:
                refused[str(cell.policy)] = error
    for spec, reason in refused.items():
        typer.secho(f"left out: {spec}: {reason}", fg="yellow", err=True)
    if cells and len(refused) == len({str(cell.policy) for cell in cells}):
        raise next(iter(refused.values()))


def _show(out: Path, as_json: bool) -> None:
    """Report, page and tables from existing rows."""
    from tacg.experiments.arena import defaults, standings
    from tacg.experiments.arena_report import best_table, tasks_of, write_arena
    from tacg.experiments.grid import SHAPE, impossible
    from tacg.records.rows import Ledger
    from tacg.records.tables import provenance

    ledger = Ledger(out / "rows.jsonl")
    found = [ledger.get(key, SHAPE, impossible) for key, row in ledger.rows.items() if "item_positions" in row]
    whole = [row for row in found if row is not None]
    rows = standings(whole)
    if not rows:
        raise TacgError(f"{out / 'rows.jsonl'} has no rows of an arena yet: start it without --redraw.")
    files = {"rows": out / "rows.jsonl", "page": out / "page.html", "report": out.with_name(f"{out.name}.md")}
    write_arena(rows, defaults(whole), files["report"], files["page"])
    if as_json:
        plain = [{name: value for name, value in row.items() if name not in LONG} for row in rows]
        print_json({"rows": plain, **{what: str(path) for what, path in files.items()}})
    else:
        show_tables(
            [best_table([row for row in rows if row["task"] == task]) for task in tasks_of(rows)], provenance(rows)
        )
    for what, path in files.items():
        typer.secho(f"{what}: {path}", err=True)
