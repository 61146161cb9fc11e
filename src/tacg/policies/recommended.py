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
    goals = ("most accurate", *(f"fastest within {give} points of that" for give in GIVES))
    lines = []
    for task, rows in chosen(arena).items():
        wins: dict[str, list[str]] = {}  # one decoder may be best by several goals
        for goal, row in zip(goals, rows, strict=True):
            wins.setdefault(row["policy"], []).append(goal)
        by_name = {row["policy"]: row for row in rows}
        lines += [(task, " and ".join(won), *_setting(by_name[name], folder)) for name, won in wins.items()]
    n = " or ".join(str(size) for size in sorted({rows[0]["n"] for rows in chosen(arena).values()}))
    words = (
        f"On `pocket`, {n} problems per task, 95 % intervals in brackets. The fastest is the one with the fewest "
        "forwards (model calls). All of this was chosen on the same problems, so it is slightly optimistic, and "
        "another model may need another decoder."
    )
    return f"{words}\n\n{markdown_table(('task', 'you want', 'decoder', 'accuracy %', 'forwards'), lines)}\n"


def chosen(arena: Sequence[ResultRow]) -> dict[str, list[ResultRow]]:
    """By task: the most accurate row, then for each of `GIVES` the one with the fewest forwards not far below it."""
    found = {}
    for task in sorted({row["task"] for row in arena}):
        most = max(row["n"] for row in arena if row["task"] == task)
        newest = {row["policy"]: row for row in arena if row["task"] == task and row["n"] == most}
        rows = list(newest.values())
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


def _setting(row: ResultRow, folder: str) -> tuple[str, str, str]:
    """One decoder and what it reaches: its name as a link, accuracy and forwards per problem."""
    page = row["policy"].partition("(")[0].partition("+")[0]
    second = row["auxiliary_forwards"] / row["n"]
    forwards = f"{row['forwards'] / row['n']:.1f}" + (f", and {second:.1f} of a second model" if second else "")
    low, high = (100 * bound for bound in row["accuracy_ci"])
    return f"[`{row['policy']}`]({folder}{page}.md)", f"{100 * row['accuracy']:.1f} [{low:.1f}, {high:.1f}]", forwards
