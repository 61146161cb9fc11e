"""List the policies and their knobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tacg.cli import complete
from tacg.cli.common import Json, own_policies
from tacg.cli.draw import console_for_tables, draw
from tacg.cli.shown import print_json
from tacg.errors import TacgError, unknown

if TYPE_CHECKING:
    from tacg.policies import Policy

# Where this repository keeps the rows that pages are drawn from.
AGREEMENT = Path("docs/bench/agreement/rows.jsonl")
ARENA = Path("docs/arena/rows.jsonl")

EPILOG = """[bold]Examples[/bold]

tacg policies

tacg policies tacg+klass

tacg policies --presets --json

tacg policies --pages docs/decoders   write one page per policy, and a table that lists them"""


def main(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show one policy, for example [cyan]tacg+klass[/cyan], or one of your own: file.py:Class.",
            callback=own_policies,
            autocompletion=complete.policies,
        ),
    ] = None,
    presets: Annotated[bool, typer.Option("--presets", help="Show the published settings instead.")] = False,
    pages: Annotated[Path | None, typer.Option(help="Write one page per policy to this directory.")] = None,
    agreement: Annotated[Path, typer.Option(help="--pages: rows of `tacg bench agreement`.")] = AGREEMENT,
    arena: Annotated[Path, typer.Option(help="--pages: rows of `tacg arena`.")] = ARENA,
    as_json: Json = False,
) -> None:
    """List the policies, which decide when tokens are committed."""
    from tacg.policies import get_policy, policy_names
    from tacg.policies import presets as published

    if pages is not None:
        _write_pages(pages, agreement, arena)
        return
    if presets:
        every = published()
        found = {key: value for key, value in every.items() if name in (None, key.partition(":")[0], key)}
        if not found:
            known = [*every, *(key.partition(":")[0] for key in every)]
            raise unknown("preset", str(name), dict.fromkeys(known), "tacg policies --presets")
        print_json(found) if as_json else _show_presets(found)
        return
    chosen = []
    for each in [name] if name else policy_names():
        try:
            chosen.append(get_policy(each))
        except TacgError as error:
            if name:
                raise
            typer.secho(f"left out: {error}", fg="yellow", err=True)
    if as_json:
        print_json({name or each.name: _facts(each) for each in chosen})
    else:
        _show(chosen, name)


def _write_pages(directory: Path, agreement: Path, arena: Path) -> None:
    """Write every page, with figures from the rows that exist."""
    from tacg.files import make_room, write_file
    from tacg.policies.pages import pages
    from tacg.records.flat import read_rows

    rows = [read_rows(path) if path.exists() else [] for path in (agreement, arena)]
    for name, text in pages(*rows).items():
        make_room(directory / name)
        write_file(directory / name, text)
        typer.echo(directory / name)


def _facts(policy: Policy) -> dict[str, Any]:
    from tacg.policies.pages import first_line, paper

    values = policy.values()
    return {
        "about": first_line(policy),
        "paper": paper(policy),
        "knobs": {
            each.name: {
                "type": each.type_name,
                "default": each.default,
                "value": values[each.name],
                "symbol": each.symbol,
                "meaning": each.meaning,
            }
            for each in policy.knobs().values()
        },
    }


def _show(chosen: list[Policy], asked: str | None) -> None:
    from tacg.policies.pages import first_line, paper

    console = console_for_tables()
    for policy in chosen:
        console.print(f"\n[bold]{asked or policy.name}[/bold]  {first_line(policy)}", highlight=False)
        console.print(f"[dim]{paper(policy)}[/dim]", highlight=False)
        lines = []
        for each in policy.knobs().values():
            value = policy.values()[each.name]
            shown = Text("none" if value is None else str(value), style="bold" if value != each.default else "")
            lines.append((Text(each.name, style="cyan"), each.symbol, shown, each.type_name, each.meaning))
        draw(console, ("knob", "symbol", "value", "type", "meaning"), lines, left=5)
    if not asked:
        console.print("\n[dim]`tacg+NAME` puts the gate over any of them; `tacg` alone means `tacg+confidence`.[/dim]")


def _show_presets(found: dict[str, dict[str, Any]]) -> None:
    lines: list[tuple[Text | str, ...]] = []
    for name, settings in found.items():
        words = ["  ".join(f"{key}={value}" for key, value in settings[part].items()) for part in ("knobs", "decode")]
        lines.append((Text(name, style="cyan"), *words))
    draw(console_for_tables(), ("preset", "knobs", "decode"), lines, left=3)
