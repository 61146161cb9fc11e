"""Put policies side by side on the same problems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    BatchSize,
    Json,
    Model,
    Seed,
    Settings,
    Split,
    load_model,
    parse_value,
    print_json,
    progress,
)
from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.knobs import Knob

COLUMNS = ("policy", "accuracy %", "steps", "TPF", "total TPF", "forwards", "s", "Δ accuracy", "Δ steps")
EPILOG = """[bold]Examples[/bold]

tacg compare --n 100

tacg compare --task pocket-math --policy confidence --policy tacg --policy tacg+klass --n 500 --json

tacg compare --policy confidence --policy tacg --set threshold=0.8 --out runs/loose"""


def main(
    task: Annotated[list[str] | None, typer.Option("--task", "-t", help="Repeatable; default: all.")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="Repeatable; default: confidence, klass, and TACG over each."),
    ] = None,
    n: Annotated[int, typer.Option(help="Problems a task.", min=1)] = 100,
    seed: Seed = 0,
    split: Split = "test",
    model: Model = DEFAULT_MODEL,
    setting: Settings = None,
    batch_size: BatchSize = 32,
    out: Annotated[Path | None, typer.Option(help="Directory for rows.jsonl and plane.png.")] = None,
    as_json: Json = False,
) -> None:
    """Compare policies on tasks: accuracy, steps, tokens per forward, and what the gate changes."""
    from tacg.experiments.compare import DEFAULT_POLICIES, compare, write_rows
    from tacg.tasks import get_task, task_names

    policies = policy or list(DEFAULT_POLICIES)
    tasks = [get_task(name) for name in task or task_names()]
    settings = _shared(policies, setting or [])
    llm = load_model(model)
    with progress("comparing", n * len(policies) * len(tasks)) as tick:
        rows = compare(
            llm, tasks, policies, n=n, seed=seed, split=split, batch_size=batch_size, settings=settings,
            on_item=lambda task, spec, item: tick(item.correct, f"{task.name} · {spec}"),
            on_row=(lambda row: write_rows(out / "rows.jsonl", [row])) if out is not None else None,
        )  # fmt: skip
    if as_json:
        print_json({"rows": rows})
    else:
        show_table(rows)
    if out is not None:
        from tacg.experiments.picture import draw_plane

        try:
            typer.secho(f"rows: {out / 'rows.jsonl'}   picture: {draw_plane(rows, out / 'plane.png')}", err=True)
        except TacgError as error:
            typer.secho(f"rows: {out / 'rows.jsonl'}   no picture: {error}", fg="yellow", err=True)


def _shared(policies: Sequence[str], pairs: Sequence[str]) -> dict[str, Any]:
    """Settings that at least one of the policies, or the decode, knows."""
    from tacg.policies import get_policy

    known: dict[str, Knob] = {}
    for spec in policies:
        known |= get_policy(spec).knobs()
    return dict(parse_value(known, pair) for pair in pairs)


def show_table(rows: Sequence[dict[str, Any]]) -> None:
    """The rows as a table a task; a difference to the base policy only where there is one."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=120)  # a file has no edge to wrap at
    for task in dict.fromkeys(row["task"] for row in rows):
        table = Table(
            title=task, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0), header_style="dim"
        )
        for column in COLUMNS:
            table.add_column(column, justify="left" if column == "policy" else "right")
        for row in (row for row in rows if row["task"] == task):
            low, high = row["accuracy_ci"]
            table.add_row(
                row["policy"], f"{100 * row['accuracy']:.1f} ({100 * low:.0f}…{100 * high:.0f})", f"{row['steps']:.1f}",
                f"{row['tpf']:.2f}", f"{row['tpf_ratio']:.2f}", str(row["forwards"]), f"{row['seconds']:.1f}",
                _difference(row, "accuracy", 100), _difference(row, "steps", 1),
            )  # fmt: skip
        console.print(table, highlight=False)
    first = rows[0]
    console.print(
        f"[dim]{first['model']} · n = {first['n']} a task · seed {first['seed']} · {first['split']} split · "
        f"{first['hardware']} · brackets: 95 % intervals, Δ to the base policy paired by problem[/dim]",
        highlight=False,
    )


def _difference(row: dict[str, Any], name: str, scale: float) -> str:
    if row.get("base") is None:
        return ""
    low, high = (scale * edge for edge in row[f"{name}_diff_ci"])
    return f"{scale * row[f'{name}_diff']:+.1f} ({low:+.1f}…{high:+.1f})"
