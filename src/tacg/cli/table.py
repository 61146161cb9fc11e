"""Print tables from results files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacg.cli.common import Json
from tacg.cli.shown import LONG, print_json, show_tables
from tacg.errors import unknown

FORMATS = ("text", "markdown", "csv", "latex")
EPILOG = """[bold]Examples[/bold]

tacg table runs/confidence.jsonl runs/tacg.jsonl         the others are compared with the first file

tacg table runs/*.jsonl --format latex > table.tex

tacg table runs/*.jsonl --plot plane.png                 accuracy over tokens per forward"""


def main(
    files: Annotated[list[Path], typer.Argument(help="Results files of [cyan]tacg eval --out[/cyan].")],
    form: Annotated[str, typer.Option("--format", "-f", help=f"One of {', '.join(FORMATS)}.")] = "text",
    plot: Annotated[Path | None, typer.Option(help="Also plot accuracy over TPF to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Print tables of existing runs, finished or not; nothing is decoded."""
    from tacg.files import make_room
    from tacg.records.tables import provenance
    from tacg.records.tabulate import rows_of, tables

    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if plot is not None:
        make_room(plot)
    rows = rows_of(files)
    if plot is not None:
        from tacg.records.plots import draw_plane

        typer.secho(f"picture: {draw_plane(rows, plot)}", err=True)
    if as_json:
        print_json({"rows": [{name: value for name, value in row.items() if name not in LONG} for row in rows]})
    elif form == "text":
        show_tables(tables(rows), provenance(rows))
    else:
        typer.echo("\n".join(getattr(table, form)() for table in tables(rows)), nl=False)
