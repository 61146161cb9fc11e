"""Which decoder to use: the arena's choice for each task, as the README's table and as data for programs.

`make decoder-pages` draws both from rows: the table in README.md, and recommended.json in this package, which holds the
choice for the built-in model.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from tacg.policies.pages import between, markdown_table
from tacg.policies.registry import get_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.records.rows import ResultRow

CHOICE = ("<!-- which decoder: make decoder-pages -->", "<!-- end of which decoder -->")  # marks around the table
GIVES = (2, 10)  # points of accuracy that may be given up for fewer forwards
FILE = "recommended.json"


def recommended() -> dict[str, list[dict[str, Any]]]:
    """The content of recommended.json (see `recommendations`)."""
    text = resources.files("tacg.policies").joinpath(FILE).read_text(encoding="utf-8")
    found: dict[str, list[dict[str, Any]]] = json.loads(text)
    return found


def with_choice(text: str, arena: Sequence[ResultRow], folder: str) -> str:
    """The text with an up-to-date `choice` between its two marks."""
    return between(text, CHOICE, choice(arena, folder))


def choice(arena: Sequence[ResultRow], folder: str) -> str:
    """Which decoder when: for each task the most accurate, and those with the fewest forwards not far below it."""
    lines = [
        (f"{task}, n = {rows[0]['n']}", *(_setting(row, folder) for row in rows))
        for task, rows in chosen(arena).items()
    ]
    columns = ("task", "most accurate", *(f"fewest forwards, at most {give} points below" for give in GIVES))
    words = (
        "On `pocket`, each decoder at the settings that were run. Brackets are 95 % intervals. Forwards are model "
        "calls per problem; a branch that looks ahead counts as one. The decoders were chosen on the same "
        "problems, so these figures are slightly optimistic. For another model, another decoder may be best."
    )
    return f"{words}\n\n{markdown_table(columns, lines)}\n"


def chosen(arena: Sequence[ResultRow]) -> dict[str, list[ResultRow]]:
    """By task: the most accurate row, then for each of `GIVES` the one with the fewest forwards not far below it."""
    found = {}
    for task in sorted({row["task"] for row in arena}):
        newest = {row["policy"]: row for row in arena if row["task"] == task}
        most = max(row["n"] for row in newest.values())
        rows = [row for row in newest.values() if row["n"] == most]
        best = max(rows, key=lambda row: (row["accuracy"], -row["forwards"]))
        near = [[row for row in rows if row["accuracy"] >= best["accuracy"] - give / 100] for give in GIVES]
        found[task] = [best, *(min(some, key=lambda row: (row["forwards"], -row["accuracy"])) for some in near)]
    return found


def recommendations(arena: Sequence[ResultRow]) -> dict[str, list[dict[str, Any]]]:
    """The same choice as data, for programs: by task, decoders with the knobs that were set and what they reached."""
    return {
        task: [
            {
                "policy": (name := row["policy"].partition("(")[0]),
                "settings": {
                    knob: value for knob, value in row["settings"].items() if knob in get_policy(name).knobs()
                },
                "accuracy": row["accuracy"], "accuracy_ci": row["accuracy_ci"],
                "forwards": row["forwards"] / row["n"], "n": row["n"],
            }
            for row in rows
        ]
        for task, rows in chosen(arena).items()
    }  # fmt: skip


def _setting(row: ResultRow, folder: str) -> str:
    """One decoder and what it reaches: `eb`, 88.8 % [85.7, 91.3] in 14.4 forwards."""
    name = row["policy"].partition("(")[0].partition("+")[0]
    low, high = (100 * bound for bound in row["accuracy_ci"])
    reaches = f"{100 * row['accuracy']:.1f} % [{low:.1f}, {high:.1f}] in {row['forwards'] / row['n']:.1f} forwards"
    second = row["auxiliary_forwards"] / row["n"]
    return f"[`{row['policy']}`]({folder}{name}.md): {reaches}" + (
        f" and {second:.1f} of a second model" if second else ""
    )
