"""Every command and every piece of Python in README and docs runs as printed.

A block that cannot run here says why, in a comment right above it: `<!-- not run: needs a GPU -->`. Its Python must
still compile, and its `tacg` commands must still have the options that it names. A `text` block after Python is its
output.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

import tacg
from tacg.cli.main import app
from tacg.policies import registry
from tests.serve.conftest import running

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<kind>python|bash|text)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SERVER = "http://127.0.0.1:8000"  # where a page's examples expect one


@dataclass(frozen=True)
class Snippet:
    """A fenced block. `why`: the reason why it is not run, or nothing."""

    kind: str
    code: str
    why: str | None


def snippets(path: Path) -> list[Snippet]:
    return [Snippet(found["kind"], found["code"], found["why"]) for found in FENCE.finditer(path.read_text("utf-8"))]


FILES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/*/*.md")))
PAGES = {str(path.relative_to(ROOT)): found for path in FILES if (found := snippets(path))}
FENCED = re.compile(r"^```(?:python|bash|console|sh|shell|pycon|ipython)\b", re.MULTILINE)


def test_no_block_is_overlooked() -> None:
    for page, found in PAGES.items():
        fences = FENCED.findall((ROOT / page).read_text("utf-8"))
        assert len(fences) == sum(each.kind != "text" for each in found), page
    assert len(PAGES) > 10


@pytest.mark.parametrize("page", PAGES)
def test_it_runs_as_printed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours = {name: kind for name, kind in registry._registered.items() if kind.__module__.startswith("tacg.")}
    monkeypatch.setattr(registry, "_registered", ours)  # pages register policies of the same name
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = None
    with contextlib.ExitStack() as stack:
        for each in PAGES[page]:
            code = each.code
            if each.why is None and SERVER in code:
                code = code.replace(SERVER, stack.enter_context(running(tacg.load("pocket"))).url)
            if each.kind == "text" and printed is not None:
                assert printed == code, f"{page} shows another output"
            printed = None
            if each.kind == "python":
                printed = run_python(code, page, names, each.why)
            elif each.kind == "bash":
                for line in commands(code):
                    run_command(line, each.why)


def run_python(code: str, page: str, names: dict[str, Any], why: str | None) -> str | None:
    """What it prints; None if it is only compiled."""
    program = compile(code, page, "exec")
    if why is not None:
        return None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program, names)
    return out.getvalue()


def commands(code: str) -> list[list[str]]:
    """Command lines as words, without comments and here-documents."""
    code = re.sub(r"<<'(\w+)'\n.*?^\1$", "", code, flags=re.MULTILINE | re.DOTALL)
    lines = code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run_command(words: list[str], why: str | None) -> None:
    program, *rest = words
    if program == "tacg" and why is None:
        done = CliRunner().invoke(app, rest)
        assert done.exit_code == 0, f"{shlex.join(words)}\n{done.output}\n{done.exception!r}"
    elif program == "tacg":
        parse(rest)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        assert {word for word in rest if "=" not in word} <= {*targets}
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
        asked = re.findall(r"(?:tacg|\.)\[([\w,-]+)\]", " ".join(rest))
        assert {extra for each in asked for extra in each.split(",")} <= extras.keys()
    else:
        assert why is not None or words == ["source", ".venv/bin/activate"], f"say why it is not run: {words}"


def parse(words: list[str]) -> None:
    """Raise if a verb or an option does not exist."""
    command: Any = typer.main.get_command(app)
    context = click.Context(command)
    while hasattr(command, "commands"):
        verb, *words = words
        command = command.commands[verb]
        context = click.Context(command, parent=context)
    command.make_parser(context).parse_args(list(words))


def test_what_is_not_run_is_still_checked() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["eval", "--task", "pocket-math", "--nonsense", "3"])
    with pytest.raises(SyntaxError):
        run_python("while True print(1)", "page", {}, "needs a GPU")
