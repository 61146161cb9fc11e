"""Does TACG help? The short answer for the README, and every run for the docs, both drawn from the rows there are.

A sample is a set of problems on which both were run: `confidence` at two thresholds or more, and TACG over it. TACG is
compared with the whole frontier of these thresholds, because a better threshold can look like a better decoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacg.experiments.frontier import against_frontier
from tacg.policies.pages import between, markdown_table
from tacg.records.tables import estimate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tacg.records.rows import ResultRow

MARKS = ("<!-- does it help: make decoder-pages -->", "<!-- end of does it help -->")
ENOUGH = 100  # problems of a sample


def with_answer(text: str, points: Sequence[ResultRow]) -> str:
    """The text with an up-to-date `answer` between its two marks."""
    return between(text, MARKS, answer(points))


def with_runs(text: str, points: Sequence[ResultRow]) -> str:
    """The text with an up-to-date table of `runs` between its two marks."""
    return between(text, MARKS, runs(points))


def answer(points: Sequence[ResultRow]) -> str:
    """One line per task and model: whether TACG helps, in how many runs, and how much it gains or loses."""
    if not points:
        return "No rows yet: this needs `confidence` at several thresholds, and TACG, on the same problems.\n"
    cells = {cell: [point for point in points if _cell(point) == cell] for cell in dict.fromkeys(map(_cell, points))}
    columns = ("model", "task", "does TACG help?", "clearly better", "clearly worse", "worst run", "best run")
    table = markdown_table(columns, [(*cell, *_summary(mine)) for cell, mine in cells.items()])
    many = " or ".join(f"{size:,}" for size in sorted({point["n"] for point in points}))
    note = (
        "The last two columns are points of accuracy gained at equal steps, with 95 % intervals. "
        f"Each run has {many} problems."
    )
    return f"{table}\n\n{note}\n"


def runs(points: Sequence[ResultRow]) -> str:
    """One line per run of TACG: its knobs, what it reached, and its gain over the frontier."""
    gained = ("points gained at equal steps", "% of steps saved")
    columns = ("model", "task", "seed", "policy", "accuracy %", "steps", *gained)
    lines = [
        (
            *_cell(point), str(point["seed"]), f"`{_label(point)}`", f"{100 * point['accuracy']:.1f}",
            f"{point['steps']:.1f}", _percents(point, "gained"), _percents(point, "saved"),
        )
        for point in points
    ]  # fmt: skip
    return markdown_table(columns, lines) + "\n"


def gains(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Every run of TACG over confidence, with its gain over the frontier of confidence on the same problems.

    For each model and task, only the samples with the most problems.
    """
    samples: dict[tuple[object, ...], dict[str, ResultRow]] = {}
    for row in rows:
        if "correct" in row and "item_steps" in row and _kind(row):
            run = f"{row['policy']} {sorted(row['settings'].items(), key=str)} {row['n']}"
            samples.setdefault(_sample(row), {})[run] = row  # the newest of equal runs
    found = []
    for mine in samples.values():
        for n in sorted({row["n"] for row in mine.values() if row["n"] >= ENOUGH}, reverse=True):
            same = [_first(row, n) for row in mine.values() if row["n"] >= n]
            frontier = [row for row in same if _kind(row) == "confidence"]
            gated = [row for row in same if _kind(row) == "tacg"]
            if len({row["settings"].get("threshold") for row in frontier}) > 1 and gated:
                found += [row | against_frontier(row, frontier) for row in gated]
                break
    largest = {_cell(row): max(each["n"] for each in found if _cell(each) == _cell(row)) for row in found}
    found = [row for row in found if row["n"] == largest[_cell(row)]]
    return sorted(found, key=lambda row: (*_cell(row), row["policy"], row["seed"]))


def _cell(row: ResultRow) -> tuple[str, str]:
    return row["model"], row["task"]


def _first(row: ResultRow, n: int) -> ResultRow:
    """The row as if only its first problems had been decoded."""
    right, steps = row["correct"][:n], row["item_steps"][:n]
    cut = {"n": n, "correct": right, "item_steps": steps, "accuracy": right.count("1") / n, "steps": sum(steps) / n}
    return {**row, **cut}


def _kind(row: ResultRow) -> str | None:
    """`confidence` or `tacg`, whichever a row is of; None for other policies, splits and caches."""
    name, settings = row["policy"].partition("(")[0], row["settings"]
    plain = settings.get("factor") is None and settings.get("cache") in (None, "auto", "none")
    return name if name in ("confidence", "tacg") and plain and row["split"] == "test" else None


def _sample(row: ResultRow) -> tuple[object, ...]:
    lengths = (row["settings"].get("gen_length"), row["settings"].get("block_length"))
    return (row["task"], row["model"], row["seed"], row.get("dtype"), *lengths)


def _summary(points: Sequence[ResultRow]) -> tuple[str, ...]:
    above = sum(point["gained_ci"][0] > 0 for point in points)
    below = sum(point["gained_ci"][1] < 0 for point in points)
    word = (
        "it depends" if above and below
        else ("yes" if above == len(points) else "at some settings") if above
        else "no, it hurts" if 2 * below >= len(points)
        else "no clear difference"
    )  # fmt: skip
    counts = (f"{count} of {len(points)} runs" for count in (above, below))
    extremes = (pick(points, key=lambda point: point["gained"]) for pick in (min, max))
    return (f"**{word}**", *counts, *(_percents(point, "gained") for point in extremes))


def _label(point: ResultRow) -> str:
    """The policy with its knobs, and what it observes if that is more than the block."""
    observed = point["settings"].get("observe", "block")
    return f"{point['policy']}" + (f", observe={observed}" if observed != "block" else "")


def _percents(point: ResultRow, what: str) -> str:
    return estimate(100 * point[what], *(100 * bound for bound in point[f"{what}_ci"]))
