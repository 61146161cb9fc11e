"""Does TACG help? The README's answer, drawn from whatever rows there are.

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
SHORT = 40  # characters of a policy's label that are shown; a longer one has tuned knobs


def with_help(text: str, rows: Iterable[ResultRow]) -> str:
    """The text with an up-to-date answer between its two marks."""
    return between(text, MARKS, answer(rows))


def answer(rows: Iterable[ResultRow]) -> str:
    """One sentence per task, then a table with every setting of TACG: its gain on each sample."""
    points = gains(rows)
    if not points:
        return "No rows yet: this needs `confidence` at several thresholds, and TACG, on the same problems.\n"
    tasks = {task: [point for point in points if point["task"] == task] for task in sorted({p["task"] for p in points})}
    sizes = sorted({point["n"] for point in points})
    words = [f"- {_verdict(task, mine)}" for task, mine in tasks.items()]
    lines = [line for task, mine in tasks.items() for line in _lines(task, mine)]
    columns = ("task", "TACG", "accuracy %", "steps", "points gained at equal steps", "% of steps saved")
    many = " or ".join(f"{size:,}" for size in sizes)
    note = (
        f"Each figure is for one sample of {many} problems, with its 95 % interval; others in a line are for other "
        "problems or other tuned knobs. Steps are saved at equal accuracy."
    )
    return "\n".join([*words, "", markdown_table(columns, lines), "", note, ""])


def gains(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Every run of TACG over confidence, with its gain over the frontier of confidence on the same problems.

    For each task, only the samples with the most problems.
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
    largest = {row["task"]: max(each["n"] for each in found if each["task"] == row["task"]) for row in found}
    found = [row for row in found if row["n"] == largest[row["task"]]]
    return sorted(found, key=lambda row: (row["task"], len(row["policy"]) > SHORT, row["policy"], row["seed"]))


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


def _verdict(task: str, points: Sequence[ResultRow]) -> str:
    above = sum(point["gained_ci"][0] > 0 for point in points)
    below = sum(point["gained_ci"][1] < 0 for point in points)
    word = (
        "mixed" if above and below
        else ("yes" if above == len(points) else "yes, at some settings") if above
        else "no" if 2 * below >= len(points)
        else "no reliable difference"
    )  # fmt: skip
    return f"**{task}: {word}.** Clearly better in {above} of {len(points)} runs, clearly worse in {below}."


def _lines(task: str, points: Sequence[ResultRow]) -> list[tuple[str, ...]]:
    """One line per setting; the figures of its samples one after another."""
    settings: dict[str, list[ResultRow]] = {}
    for point in points:
        name = f"`{point['policy']}`" if len(point["policy"]) <= SHORT else "tuned on other problems"
        settings.setdefault(name, []).append(point)
    found = []
    for name, mine in settings.items():
        accuracy = ", ".join(f"{100 * each['accuracy']:.1f}" for each in mine)
        steps = ", ".join(f"{each['steps']:.1f}" for each in mine)
        found.append((task, name, accuracy, steps, *(_percents(mine, what) for what in ("gained", "saved"))))
    return found


def _percents(points: Sequence[ResultRow], what: str) -> str:
    bounds = [(point[what], *point[f"{what}_ci"]) for point in points]
    return "; ".join(estimate(100 * value, 100 * low, 100 * high) for value, low, high in bounds)
