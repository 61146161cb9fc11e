"""What several verbs share."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacg.errors import TacgError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tacg.knobs import Knob
    from tacg.llm import LLM
    from tacg.records.rows import ResultRow
    from tacg.records.tables import Table
    from tacg.tasks import Task


DEFAULT_MODEL = "pocket"
LONG = {"correct", "item_steps", "item_positions", "commits_by_step"}  # columns that hold a value for every problem

# Options that several verbs take, in the same words.
Model = Annotated[str, typer.Option("--model", "-m", help="Built-in model, judge, directory or hub id.")]
Verifier = Annotated[
    str | None,
    typer.Option(
        help="For apd: directory or hub id of an autoregressive model with the same tokenizer; pocket has one."
    ),
]
SettingOptions = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="NAME=VALUE", help="Any knob of the policy or the decode; repeatable."),
]
Data = Annotated[
    Path | None, typer.Option(help="File of the benchmark (gsm8k, math500, humaneval, mbpp); default: download it.")
]
TaskKnobs = Annotated[
    list[str] | None, typer.Option("--knob", "-k", metavar="NAME=VALUE", help="Any knob of the task; repeatable.")
]
BatchSize = Annotated[int, typer.Option(help="Rows decoded together.", min=1)]
Tasks = Annotated[
    list[str] | None, typer.Option("--task", "-t", help="Task to run, see `tacg tasks`; repeatable; default: all.")
]
N = Annotated[int, typer.Option(help="Problems per task.", min=1)]
Out = Annotated[Path, typer.Option(help="Directory for rows, plots and page; existing rows are not decoded again.")]
Quick = Annotated[bool, typer.Option("--quick", help="Quick look: few problems, few settings.")]
Seed = Annotated[int, typer.Option(help="Seed that selects the problems.", min=0)]
Split = Annotated[str, typer.Option(help="Split of the problems: train, dev or test.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, …")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document as the last line of stdout.")]


def parse_settings(policy: str, pairs: Iterable[str]) -> dict[str, Any]:
    """`name=value` words as typed settings of the policy or of the decode."""
    from tacg.policies import get_policy

    known = get_policy(policy).knobs()
    return dict(parse_value(known, pair) for pair in pairs)


def parse_value(policy_knobs: Mapping[str, Knob], pair: str) -> tuple[str, Any]:
    """One `name=value` as a typed setting of a policy with these knobs, or of the decode."""
    from tacg.engine.request import Decode

    name, equals, value = pair.partition("=")
    if name == "suppress" and equals:
        return name, tuple(_id(word) for word in value.split(","))
    return _typed(pair, Decode().knobs() | dict(policy_knobs), "setting", ("suppress",))


def _typed(pair: str, known: Mapping[str, Knob], what: str, others: Sequence[str] = ()) -> tuple[str, Any]:
    """One `name=value` as the knob of that name reads it; `others` are names that are known, too."""
    name, equals, value = pair.partition("=")
    if not equals:
        raise TacgError(f"A {what} must be written name=value, got {pair!r}.")
    if name not in known:
        raise unknown(what, name, [*known, *others])
    return name, known[name].parse(value)


def load_task(name: str, data: Path | None = None, pairs: Sequence[str] = ()) -> Task:
    """A task with its knobs as typed: `name=value` words, and the file of a set."""
    from tacg.tasks import benchmark_names, get_task

    known: Mapping[str, Knob] = get_task(name).knobs()
    values = dict(_typed(pair, known, f"knob of {name}") for pair in pairs)
    if data is not None:
        if "data" not in known:
            raise TacgError(f"{name} is generated and takes no --data; {', '.join(benchmark_names())} do.")
        values["data"] = str(data)
    return get_task(name, **values)


def shared_settings(policies: Sequence[str], pairs: Sequence[str]) -> dict[str, Any]:
    """Settings that at least one of the policies, or the decode, knows."""
    from tacg.policies import get_policy

    known: dict[str, Knob] = {}
    for spec in policies:
        known |= get_policy(spec).knobs()
    return dict(parse_value(known, pair) for pair in pairs)


def load_model(name: str, *, dtype: str = "float32", device: str = "cpu", verifier: str | None = None) -> LLM:
    """Load a model under a bar; a built-in one says first what it is."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from tacg.llm import load
    from tacg.models.loading import BUILT_IN

    if name in BUILT_IN:
        typer.secho(f"{name}: {BUILT_IN[name]}", dim=True, err=True)
        return load(name, dtype=dtype, device=device, verifier=verifier)
    with Progress(
        TextColumn("loading"), BarColumn(), DownloadColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        line = bar.add_task("", total=None)
        return load(
            name, dtype=dtype, device=device, verifier=verifier,
            tell=lambda done, total: bar.update(line, completed=done, total=total),
        )  # fmt: skip


@contextlib.contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[..., None]]:
    """A bar on stderr with the running accuracy; call what it gives with each item's correctness and, if known, TPF."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        seen: dict[str, tuple[int, int, float]] = {}  # items so far, right ones, the sum of their TPF

        def tick(part: str, correct: bool, tpf: float | None = None) -> None:
            count, right, paces = seen.get(part, (0, 0, 0.0))
            count, right, paces = seen[part] = count + 1, right + correct, paces + (tpf or 0.0)
            pace = "" if tpf is None else f" · {paces / count:.2f} TPF"
            bar.update(task, advance=1, description=f"{part} · {100 * right / count:.0f} % right{pace}")

        yield tick


def _id(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise TacgError(f"`suppress` must be token ids with commas between, got {word!r}.") from None


def ready_directory(out: Path) -> Path:
    """Raise before anything is decoded unless rows and page can be written there."""
    from tacg.files import make_room

    for name in ("rows.jsonl", "page.html"):
        make_room(out / name)
    return out


def print_json(document: Any) -> None:
    """One JSON document as the last line of stdout."""
    typer.echo(json.dumps(document))


def present(
    title: str, rows: Sequence[ResultRow], tables: Sequence[Table], draw: Mapping[str, Callable[..., Path]],
    out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Show an experiment: tables in the terminal or rows as JSON; in `out` its pictures and a page with everything."""
    from tacg.records.tables import provenance

    if as_json:
        print_json({"rows": [{name: value for name, value in row.items() if name not in LONG} for row in rows]})
    else:
        show_tables(tables, provenance(rows))
    if out is not None:
        publish(title, rows, tables, draw, out)


def publish(
    title: str, rows: Sequence[ResultRow], tables: Sequence[Table], draw: Mapping[str, Callable[..., Path]], out: Path
) -> None:
    """Pictures, as far as they can be drawn, and a page with everything; says where they are."""
    from tacg.records.tables import Section, provenance, write_page

    pictures = []
    for name, function in draw.items():
        try:
            pictures.append(function(rows, out / name))
        except TacgError as error:
            typer.secho(f"no picture: {error}", fg="yellow", err=True)
    section = Section("", "", tables, pictures, provenance(rows))
    page = write_page(out / "page.html", title, [section])
    for what, path in (("rows", out / "rows.jsonl"), *(("picture", each) for each in pictures), ("page", page)):
        typer.secho(f"{what}: {path}", err=True)


def show_tables(tables: Sequence[Table], note: str = "") -> None:
    """Tables as a person reads them."""
    from rich.console import Console
    from rich.table import Table as Drawn

    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # a file has no edge to wrap at
    for table in tables:
        drawn = Drawn(
            title=table.title,
            title_justify="left",
            title_style="bold",
            box=None,
            padding=(0, 2, 0, 0),
            header_style="dim",
        )
        for number, column in enumerate(table.columns):
            drawn.add_column(column, justify="left" if number == 0 else "right")
        for line in table.lines:
            drawn.add_row(*line)
        console.print(drawn, highlight=False)
    if note:
        console.print(f"[dim]{note}[/dim]", highlight=False)
