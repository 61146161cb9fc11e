"""Run the experiments of the paper's tables and show the published figures next to ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacg.cli.common import (
    BatchSize,
    CacheMode,
    Data,
    Device,
    Dtype,
    Json,
    Seed,
    SettingOptions,
    TaskKnobs,
    benchmark_files,
    load_model,
    parse_settings,
    ready_directory,
    task_knobs,
)
from tacg.cli.shown import LONG, print_json, progress, publish, show_tables
from tacg.errors import TacgError, unknown

if TYPE_CHECKING:
    from tacg.experiments.reproduce import Stage
    from tacg.records.results import Item
    from tacg.records.rows import ResultRow
    from tacg.records.tables import Table

EPILOG = """[bold]Examples[/bold]

tacg reproduce --dry-run                                     every table: runs, problems, forwards

tacg reproduce table1 --model llada=./LLaDA-8B-Instruct --model dream=./Dream --device cuda

tacg reproduce table3 --data humaneval=HumanEval.jsonl --data mbpp=sanitized-mbpp.json --device cuda

tacg reproduce table1 --released --device cuda               follow the authors' code instead of the paper's rule

tacg reproduce table3 --model pocket                         a rehearsal: the same plan on the pocket tasks"""

FOOTNOTE = (
    "forwards: from the published steps, otherwise length / TPF, an upper bound (rows of LLaDA2 stop early); runs that "
    "several tables share are decoded once"
)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="table1 … table5, figures; default: all.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="NAME=DIRECTORY for llada, dream or llada2-mini; a built-in model: rehearsal."
        ),
    ] = None,
    data: Data = None,
    knob: TaskKnobs = None,
    setting: SettingOptions = None,
    cache: CacheMode = None,
    released: Annotated[bool, typer.Option("--released", help="Use the gate of the authors' released code.")] = False,
    n: Annotated[int | None, typer.Option("--n", "--limit", help="Maximum problems per run.", min=1)] = None,
    seed: Seed = 0,
    batch_size: BatchSize = 32,
    dtype: Dtype = "auto",
    device: Device = "cpu",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show how much work it is; decode nothing.")] = False,
    out: Annotated[Path | None, typer.Option(help="Directory for the results files; default: under runs.")] = None,
    as_json: Json = False,
) -> None:
    """Run the paper's experiments with their published settings; existing results are not decoded again."""
    from tacg.experiments.reproduce import NAMES, Stage, plan
    from tacg.tasks import benchmark_names, task_names

    wanted = names or list(NAMES)
    for name in wanted:
        if name not in NAMES:
            raise unknown("table", name, NAMES)
    rehearsal, places = _models(model or [])
    files = benchmark_files(benchmark_names(), data or [])
    knobs = task_knobs(task_names() if rehearsal else benchmark_names(), knob)
    stage = Stage(rehearsal, released, n, seed, files, knobs, parse_settings("tacg+klass", setting, cache))
    home = out or Path("runs") / "-".join(["reproduce", *([rehearsal] if rehearsal else []), *([str(n)] if n else [])])
    if dry_run:
        plans = [plan(name, stage, home) for name in wanted]
        if as_json:
            print_json(
                {table.title: [dict(zip(table.columns, line, strict=True)) for line in table.lines] for table in plans}
            )
        else:
            show_tables(plans, FOOTNOTE)
        return

    ready_directory(home)

    def load(name: str) -> Any:
        where = rehearsal or places.get(name) or _checkpoint(name)
        return load_model(where, dtype=dtype, device=device)

    shown = [_play(name, stage, load, home, batch_size) for name in wanted]
    if as_json:
        print_json({name: [_plain(row) for row in rows] for name, (rows, _) in zip(wanted, shown, strict=True)})
    else:
        note = (
            "rehearsal: a different model and different problems, so no differences are shown"
            if rehearsal
            else "Δ items: how many more problems were right than published"
        )
        show_tables([table for _, found in shown for table in found], note)


def _play(name: str, stage: Stage, load: Any, home: Path, batch_size: int) -> tuple[list[ResultRow], list[Table]]:
    """The rows of one table, with a progress bar; its page goes next to the results files."""
    from tacg.experiments.reproduce import heat_rows, pace_rows, play, runs_of, tables
    from tacg.records.plots import draw_dynamics, draw_heat

    lines = runs_of(name)
    with progress(name, sum(stage.items(line) for line in lines)) as tick:

        def told(title: str, item: Item, *, known: bool) -> None:
            tick(title, item.correct, item.tpf, known=known)

        rows = play(lines, stage, load, home, batch_size, told)
    found = tables(name, rows)
    draw: dict[str, Any] = {}
    if name == "figures":
        draw = {
            f"{each}.png": lambda made, path, each=each: draw_heat(heat_rows(each, made), path)
            for each in ("fig3", "fig4")
        }
        draw["fig5.png"] = lambda made, path: draw_dynamics(list(pace_rows(made)), path)
    publish(f"The paper's {name}", rows, found, draw, home / name)
    return rows, found


def _plain(row: ResultRow) -> dict[str, Any]:
    """A row as JSON, with what was published."""
    line = row["line"]
    published = {"accuracy": line.accuracy, "steps": line.steps, "tpf": line.tpf}
    kept = {name: value for name, value in row.items() if name not in LONG | {"line"}}
    return kept | {
        "paper": {"model": line.model, "task": line.task, "policy": line.policy, "part": line.part, **published}
    }


def _models(words: list[str]) -> tuple[str, dict[str, str]]:
    """A built-in model for a rehearsal, or the locations of the paper's models."""
    from tacg.models.loading import BUILT_IN

    if len(words) == 1 and words[0] in BUILT_IN:
        return words[0], {}
    if any("=" not in word for word in words):
        raise TacgError(
            f"`--model` takes NAME=DIRECTORY, or one built-in model for a rehearsal ({', '.join(BUILT_IN)}); "
            f"got {' '.join(words)!r}."
        )
    from tacg.experiments.reproduce import paper

    places = _pairs("--model", words)
    for name in places:
        if name not in paper()["models"]:
            raise unknown("model of the paper", name, paper()["models"])
    return "", places


def _checkpoint(name: str) -> str:
    from tacg.experiments.reproduce import paper

    return str(paper()["models"][name]["checkpoint"])


def _pairs(option: str, words: list[str]) -> dict[str, str]:
    for word in words:
        if "=" not in word:
            raise TacgError(f"`{option}` must be written name=path, got {word!r}.")
    return {name: path for name, _, path in (word.partition("=") for word in words)}
