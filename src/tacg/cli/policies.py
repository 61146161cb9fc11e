"""List the policies and their knobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacg.cli.common import Json, print_json
from tacg.errors import TacgError, unknown

if TYPE_CHECKING:
    from tacg.policies import Policy

EPILOG = """[bold]Examples[/bold]

tacg policies

tacg policies tacg+klass

tacg policies --presets --json"""


def main(
    name: Annotated[str | None, typer.Argument(help="Show one policy, for example [cyan]tacg+klass[/cyan].")] = None,
    presets: Annotated[bool, typer.Option("--presets", help="Show the published settings instead.")] = False,
    as_json: Json = False,
) -> None:
    """List what decides when tokens are committed."""
    from tacg.policies import get_policy, policy_names
    from tacg.policies import presets as published

    if presets:
        every = published()
        found = {key: value for key, value in every.items() if name in (None, key.partition(":")[0], key)}
        if not found:
            raise unknown("preset", str(name), [*every, *(key.partition(":")[0] for key in every)])
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


def _facts(policy: Policy) -> dict[str, Any]:
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


def first_line(policy: Policy) -> str:
    """What the policy does, in one sentence of its docstring."""
    return (type(policy).__doc__ or "").strip().splitlines()[0]


def paper(policy: Policy) -> str:
    """Where it is from: the first paragraph of its file."""
    import sys

    text = (sys.modules[type(policy).__module__].__doc__ or "").strip()
    return " ".join(text.split("\n\n")[0].split())


def _show(chosen: list[Policy], asked: str | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for policy in chosen:
        console.print(f"\n[bold]{asked or policy.name}[/bold]  {first_line(policy)}", highlight=False)
        console.print(f"[dim]{paper(policy)}[/dim]", highlight=False)
        table = Table("knob", "symbol", "value", "type", "meaning", box=None, padding=(0, 2, 0, 2), header_style="dim")
        for each in policy.knobs().values():
            value = policy.values()[each.name]
            shown = "none" if value is None else str(value)
            changed = f"[bold]{shown}[/bold]" if value != each.default else shown
            table.add_row(f"[cyan]{each.name}[/cyan]", each.symbol, changed, each.type_name, each.meaning)
        console.print(table)
    if not asked:
        console.print("\n[dim]`tacg+NAME` puts the gate over any of them; `tacg` alone is over confidence.[/dim]")


def _show_presets(found: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("preset", "knobs", "decode", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, settings in found.items():
        words = ["  ".join(f"{key}={value}" for key, value in settings[part].items()) for part in ("knobs", "decode")]
        table.add_row(f"[cyan]{name}[/cyan]", *words)
    Console().print(table, highlight=False)
