"""`auto` in every arena there is: is it the best decoder, on models and tasks that it was not chosen on?"""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING

from tacg.experiments.frontier import mean_gain
from tacg.experiments.law import AUTO
from tacg.experiments.law_report import chosen_on
from tacg.policies.base import DEFAULT_BASE
from tacg.policies.pages import between, markdown_table
from tacg.records.tables import estimate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tacg.records.rows import ResultRow

MARKS = ("<!-- auto in every arena: make decoder-pages -->", "<!-- end of auto in every arena -->")


def with_cells(text: str, standings: Iterable[ResultRow]) -> str:
    """The text with an up-to-date summary between its two marks."""
    return between(text, MARKS, summary(cells(standings)))


def cells(standings: Iterable[ResultRow]) -> list[ResultRow]:
    """One row per model and task with points of `auto` and two of `confidence`: how far ahead, and what it saves.

    ahead  AUP, minus that of the best other decoder
    saved  share of the steps of confidence at equal accuracy: the mean over the values of its bound
    """
    points: dict[tuple[str, str], list[ResultRow]] = {}
    for row in standings:
        points.setdefault((row["model"], row["task"]), []).append(row)
    return [_cell(rows) for rows in points.values() if _has_both(rows)]


def _has_both(rows: Sequence[ResultRow]) -> bool:
    specs = [row["spec"] for row in rows if "ahead" in row]
    return AUTO in specs and specs.count(DEFAULT_BASE) > 1


def _cell(rows: Sequence[ResultRow]) -> ResultRow:
    mine, base = ([row for row in rows if row["spec"] == spec] for spec in (AUTO, DEFAULT_BASE))
    rival = max((row for row in rows if row["spec"] != AUTO), key=lambda row: row["aup"])
    own = mine[0]
    found = {name: own[name] for name in ("model", "task", "n", "aup", "ahead", "ahead_ci")}
    found |= {"decoders": len({row["spec"] for row in rows}), "points": len(rows), "rival": rival["spec"]}
    return found | {"rival_aup": rival["aup"], "unseen": not chosen_on(own)} | mean_gain(mine, base)


def summary(cells: Sequence[ResultRow]) -> str:
    """In how many unseen cells it is the best or within its interval of the best, then one line per cell."""
    unseen = [cell for cell in cells if cell["unseen"]]
    if not unseen:
        return "No arena yet on a model or task that `auto` was not chosen on.\n"
    good, first = (sum(at(cell) >= 0 for cell in unseen) for at in (lambda cell: cell["ahead_ci"][1], _ahead))
    saved = 100 * mean(cell["saved"] for cell in unseen)
    said = (
        f"`auto` was not chosen on {len(unseen)} of these. There its AUP is the best in {first}, and the best or "
        f"within its interval of the best in {good}. At equal accuracy it saves {saved:.0f} % of the steps of "
        f"`{DEFAULT_BASE}` there, on average."
    )
    columns = ("model", "task", "n", "decoders", "settings", "AUP", "best other", "ahead", "steps saved %")
    return f"{said}\n\n{markdown_table(columns, [_line(cell) for cell in cells])}\n"


def _ahead(cell: ResultRow) -> float:
    return float(cell["ahead"])


def _line(cell: ResultRow) -> tuple[str, ...]:
    return (
        cell["model"], cell["task"] + ("" if cell["unseen"] else " (chosen on)"), str(cell["n"]),
        str(cell["decoders"]), str(cell["points"]), f"{cell['aup']:.0f}", f"{cell['rival']} {cell['rival_aup']:.0f}",
        estimate(cell["ahead"], cell["ahead_ci"][0], cell["ahead_ci"][1], "+.0f"),
        estimate(100 * cell["saved"], 100 * cell["saved_ci"][0], 100 * cell["saved_ci"][1], "+.0f"),
    )  # fmt: skip
