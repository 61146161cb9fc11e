"""A page for each decoder. Docstrings, knobs and needs come from the code, the rest from `about/`.

`about/NAME.md` has three headings: the rule in mathematics, what its authors published, and when to use it. Its first
lines (between `+++`) are the entry in the table of all decoders.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError
from tacg.policies.base import DEFAULT_BASE, Policy, Wrapper
from tacg.policies.registry import BUILT_IN, get_policy
from tacg.types import Needs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tacg.records.rows import ResultRow

HEADINGS = ("Rule", "Published", "When to use it")
# What each need means; others are shown by name.
MEANINGS = {
    "names": "Signals",
    "contrast": "A reference of past logits",
    "credit": "Credit in the logits",
    "scope": "Positions in view",
    "committed": "Committed positions are read, too",
    "samples": "Sampled tokens per position",
    "branches": "Branches per step, one forward each",
}


@dataclass(frozen=True)
class About:
    """The content of `about/NAME.md`. `commits` and `origin` are columns of the table of all decoders."""

    commits: str
    origin: str
    sections: Mapping[str, str]


def about(name: str) -> About:
    """Read `about/NAME.md` of a policy."""
    file = resources.files("tacg.policies").joinpath("about", f"{name}.md")
    if not file.is_file():
        raise TacgError(f"The policy {name!r} has no page: write src/tacg/policies/about/{name}.md.")
    parts = file.read_text(encoding="utf-8").split("+++\n")
    if len(parts) != 3:
        raise TacgError(f"about/{name}.md must begin with `commits` and `from` between two lines of +++.")
    line = tomllib.loads(parts[1])
    found = re.split(r"^## (.+)\n", parts[2], flags=re.MULTILINE)
    sections = {title: text.strip() for title, text in zip(found[1::2], found[2::2], strict=True)}
    if tuple(sections) != HEADINGS:
        raise TacgError(f"about/{name}.md must have the headings {', '.join(HEADINGS)}; got {', '.join(sections)}.")
    return About(line["commits"], line["from"], sections)


def pages(agreement: Sequence[ResultRow] = (), arena: Sequence[ResultRow] = ()) -> dict[str, str]:
    """Every page by file name, including the index.

    agreement  rows of `tacg bench agreement`
    arena      rows of decodes: `policy`, `task`, `n`, `accuracy`, `steps`, `tpf`
    """
    made = {f"{name}.md": page(name, agreement, arena) for name in BUILT_IN}
    head = "# Decoders\n\nOne page per decoder: its rule, its knobs, what it needs, the authors' figures and ours.\n\n"
    return made | {"README.md": head + overview("")}


def page(name: str, agreement: Sequence[ResultRow] = (), arena: Sequence[ResultRow] = ()) -> str:
    """The page of one policy."""
    policy, words = get_policy(name), about(name)
    paragraphs = [f"# {name}", paper(policy), inspect.getdoc(type(policy)) or ""]
    paragraphs += ["## Rule", words.sections["Rule"]]
    paragraphs += ["## Knobs", _knobs(policy), "## What it needs", _needs(policy)]
    paragraphs += ["## Published", words.sections["Published"], "## On pocket", _figures(name, arena)]
    paragraphs += ["## Agreement with the authors' code", _agreement(name, agreement)]
    paragraphs += ["## When to use it", words.sections["When to use it"]]
    return "\n\n".join(each.strip() for each in paragraphs) + "\n"


def overview(folder: str) -> str:
    """The table of all policies; `folder` is the path to their pages from the file that shows it."""
    lines = []
    for name in BUILT_IN:
        words, wraps = about(name), isinstance(get_policy(name), Wrapper)
        spelled = f"[`{name}`]({folder}{name}.md)" + (f", `{name}+…`" if wraps else "")
        lines.append(f"| {spelled} | {words.commits} | {words.origin} |\n")
    return "| name | commits | from |\n|---|---|---|\n" + "".join(lines)


def between(text: str, marks: tuple[str, str], content: str) -> str:
    """The text with new content between two marks."""
    start, end = marks
    if text.count(start) != 1 or text.count(end) != 1:
        raise TacgError(f"There must be one {start!r} and one {end!r} around what is written by a program.")
    before, _, rest = text.partition(start)
    return f"{before}{start}\n{content}{end}{rest.partition(end)[2]}"


def first_line(policy: Policy) -> str:
    """What the policy does: the first line of its docstring."""
    return (type(policy).__doc__ or "").strip().splitlines()[0]


def paper(policy: Policy) -> str:
    """Where it comes from: the first paragraph of its module's docstring."""
    text = (sys.modules[type(policy).__module__].__doc__ or "").strip()
    return " ".join(text.split("\n\n")[0].split())


def _knobs(policy: Policy) -> str:
    base = policy.base.knobs() if isinstance(policy, Wrapper) else {}
    lines = [
        (f"`{each.name}`", each.symbol, "none" if each.default is None else str(each.default),
         each.type_name.replace("|", "or"), each.meaning)
        for each in policy.knobs().values() if each.name not in base
    ]  # fmt: skip
    table = markdown_table(("knob", "symbol", "default", "values", "meaning"), lines)
    return table + (f"\n\nAnd those of the policy that it wraps, `{DEFAULT_BASE}` by default." if base else "")


def _needs(policy: Policy) -> str:
    plain, lines = Needs(), []
    for each in dataclasses.fields(Needs):
        value = getattr(policy.needs, each.name)
        if value != getattr(plain, each.name):
            meaning = MEANINGS.get(each.name, each.name.capitalize())
            lines.append(f"- {meaning}." if value is True else f"- {meaning}: {_spelled(value)}.")
    if policy.revises:
        lines.append("- It revises: what it has written in an open block is not final.")
    return "\n".join(lines) or "Only the proposal and its confidence: no state, no extra forward."


def _spelled(value: Any) -> str:
    if isinstance(value, frozenset | tuple):
        return ", ".join(f"`{each}`" for each in sorted(value))
    return str(value)


def _figures(name: str, rows: Sequence[ResultRow]) -> str:
    mine: dict[tuple[str, str], ResultRow] = {}  # for each setting, the newest row with the most problems
    for row in (row for row in rows if row.get("policy", "").partition("(")[0] == name):
        setting = row["task"], row["policy"]
        if setting not in mine or row["n"] >= mine[setting]["n"]:
            mine[setting] = row
    if not mine:
        return "No rows yet: `tacg arena` makes them."
    lines = [
        (row["task"], f"`{row['policy']}`", str(row["n"]), f"{100 * row['accuracy']:.1f} %", f"{row['steps']:.1f}",
         f"{row['tpf']:.2f}")
        for row in sorted(mine.values(), key=lambda row: (row["task"], row["steps"]))
    ]  # fmt: skip
    return markdown_table(("task", "settings", "n", "accuracy", "steps", "tokens per forward"), lines)


def _agreement(name: str, rows: Sequence[ResultRow]) -> str:
    newest = {
        (row["series"], row["decoder"]): row for row in rows if name in row["policy"].partition(":")[0].split("+")
    }
    mine = [row for row in newest.values() if row["n"]]
    if not mine:
        told = [row["skipped"] for row in newest.values()]
        return told[0] if told else "Not compared with the authors' code yet."
    lines = [
        (row["decoder"], row["series"], f"{row['source']} {row['commit']}",
         *(str(row[key]) for key in ("n", "same_tokens", "same_steps", "rounding", "known")))
        for row in mine
    ]  # fmt: skip
    columns = ("decoder", "model", "code", "n", "same tokens", "same steps", "differ by rounding", "by a known cause")
    remarks = dict.fromkeys(f"- {row['decoder']}: {row['why']}" for row in mine if row["why"])
    return "\n".join([markdown_table(columns, lines), "", *remarks])


def markdown_table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table, with columns aligned left."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *lines))
