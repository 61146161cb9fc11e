"""What verbs print: tables, pages, JSON and progress."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from tacg.cli.draw import console_for_tables, draw
from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tacg.records.rows import ResultRow
    from tacg.records.tables import Table

LONG = {"correct", "item_steps", "item_positions", "item_forwards", "commits_by_step"}  # a value for every problem


@contextlib.contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[..., None]]:
    """A bar on stderr with the running accuracy and the remaining time.

    Call the returned function with each item's correctness and TPF. `known` items were decoded before; the estimate of
    the remaining time leaves them out.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        seen: dict[str, tuple[int, int, float]] = {}  # items so far, right ones, the sum of their TPF

        def tick(part: str, correct: bool, tpf: float | None = None, *, known: bool = False) -> None:
            count, right, paces = seen.get(part, (0, 0, 0.0))
            count, right, paces = seen[part] = count + 1, right + correct, paces + (tpf or 0.0)
            pace = "" if tpf is None else f" · {paces / count:.2f} TPF"
            said = f"{part} · {100 * right / count:.0f} % right{pace}"
            if known:
                done = sum(each[0] for each in seen.values())
                bar.reset(task, total=total, completed=done, description=said)
            else:
                bar.update(task, advance=1, description=said)

        yield tick


def print_json(document: Any) -> None:
    """One JSON document as the last line of stdout."""
    typer.echo(json.dumps(document))


def present(
    title: str, rows: Sequence[ResultRow], tables: Sequence[Table], draw: Mapping[str, Callable[..., Path]],
    out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Show an experiment: tables in the terminal or rows as JSON; plots and a page with everything in `out`."""
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
    """Draw plots, if matplotlib is installed, and a page with everything; print where they are."""
    from tacg.records.tables import Section, provenance, write_page

    pictures = []
    for name, function in draw.items():
        try:
            pictures.append(function(rows, out / name))
        except TacgError as error:
            typer.secho(f"no plot: {error}", fg="yellow", err=True)
    section = Section("", "", tables, pictures, provenance(rows))
    page = write_page(out / "page.html", title, [section])
    for what, path in (("rows", out / "rows.jsonl"), *(("plot", each) for each in pictures), ("page", page)):
        typer.secho(f"{what}: {path}", err=True)


def say(*paragraphs: str, aside: bool = False) -> None:
    """Print sentences, wrapped to the terminal's width; `aside` prints to stderr, so that stdout keeps only data."""
    console = console_for_tables(stderr=aside)
    for text in paragraphs:
        console.print(Text(text))


def show_tables(tables: Sequence[Table], note: str = "") -> None:
    """Print tables for people."""
    console = console_for_tables()
    for table in tables:
        draw(console, table.columns, table.lines, title=table.title)
    if note:
        console.print(Text(note, style="dim"))
