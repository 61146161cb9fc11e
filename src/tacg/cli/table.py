"""Print tables of any rows or results that a command wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacg.cli.common import Json
from tacg.cli.shown import LONG, print_json, show_tables
from tacg.errors import TacgError, unknown

FORMATS = ("text", "markdown", "csv", "latex")
EPILOG = """[bold]Examples[/bold]

tacg table runs/confidence.jsonl runs/tacg.jsonl         the others are compared with the first file

tacg table runs/compare/rows.jsonl                       rows of compare, arena, ablate, sweep, law, bench, …

tacg table runs/*.jsonl --format latex > table.tex

tacg table docs/arena/rows.jsonl --format csv            numeric columns; accuracy_low and accuracy_high: interval

tacg table runs/*.jsonl --plot plane.png                 accuracy over tokens per forward"""


def main(
    files: Annotated[list[Path], typer.Argument(help="rows.jsonl of any command, results files of `tacg eval --out`.")],
    form: Annotated[str, typer.Option("--format", "-f", help=f"One of {', '.join(FORMATS)}.")] = "text",
    plot: Annotated[Path | None, typer.Option(help="Also plot accuracy over TPF to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Print tables of existing runs, finished or not; nothing is decoded.

    In Python, [cyan]tacg.read_rows(file).to_pandas()[/cyan] makes a data frame of the same files.
    """
    from tacg.files import make_room
    from tacg.records.tables import provenance
    from tacg.records.tabulate import is_evaluation, rows_of, tables

    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if plot is not None:
        make_room(plot)
    rows = rows_of(files)
    if plot is not None:
        from tacg.records.plots import draw_plane

        graded = [row for row in rows if is_evaluation(row)]
        if not graded:
            raise TacgError("--plot shows accuracy over TPF, and these rows have no accuracy.")
        typer.secho(f"plot: {draw_plane(graded, plot)}", err=True)
    if as_json:
        print_json({"rows": [{name: value for name, value in row.items() if name not in LONG} for row in rows]})
    elif form == "csv":
        typer.echo(rows.to_csv(), nl=False)
    elif form == "text":
        show_tables(tables(rows), provenance(rows))
    else:
        typer.echo("\n".join(getattr(table, form)() for table in tables(rows)), nl=False)
