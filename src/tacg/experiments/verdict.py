"""A comparison in plain sentences: which is better, by how much, how sure that is, and why. Computed from rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacg.engine.request import resolve
from tacg.policies.tacg import Tacg
from tacg.records.tables import estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.records.rows import ResultRow


TOLERATED = 2.0  # differences in accuracy that do not matter, in points


def in_words(rows: Sequence[ResultRow]) -> list[str]:
    """One paragraph for every row that has a base policy, and a last one if there are too few problems to be sure."""
    paired = [row for row in rows if row.get("base")]
    said = [f"{row['task']}: {_sentence(row)} {_why(row, _base_of(row, rows))}".rstrip() for row in paired]
    unclear = [row for row in paired if row["accuracy_diff_ci"][0] <= 0 <= row["accuracy_diff_ci"][1]]
    if unclear:
        reach = max((high - low) / 2 for low, high in (row["accuracy_diff_ci"] for row in unclear))
        n = min(row["n"] for row in unclear)
        reach = max(reach, rule_of_three(n))
        said.append(
            f"With {n} problems per task, differences in accuracy below about {100 * reach:.0f} points may be "
            "chance; a larger --n shows smaller ones."
        )
    return said


def rule_of_three(n: int) -> float:
    """The share of problems that may differ although none of `n` did: an upper 95 % bound."""
    return min(3 / n, 1.0)


def _base_of(row: ResultRow, rows: Sequence[ResultRow]) -> ResultRow:
    return next(each for each in rows if each["task"] == row["task"] and each["name"] == row["base"])


def _sentence(row: ResultRow) -> str:
    """What changed, with intervals, and what that means."""
    better, faster = sign_of(row, "accuracy"), -sign_of(row, "steps")
    accuracy = {1: "right more often", 0: "no clear difference in accuracy", -1: "right less often"}[better]
    steps = {1: "fewer steps", 0: "no clear difference in steps", -1: "more steps"}[faster]
    low, high = (100 * edge for edge in row["accuracy_diff_ci"])
    points = estimate(100 * row["accuracy_diff"], low, high)
    count = estimate(row["steps_diff"], *row["steps_diff_ci"])
    told = f"{row['name']} against {row['base']}: {accuracy} ({points} points), {steps} ({count})."
    unseen = 100 * rule_of_three(row["n"])
    return f"{told} {_summary(better, faster, min(low, -unseen), max(high, unseen))}"


def _summary(better: int, faster: int, low: float, high: float) -> str:
    """low, high  bounds of the accuracy gained, in points"""
    if better == 0 and faster > 0:
        return f"It saves steps, and costs {-low:.0f} points at most." if low < -TOLERATED else "The gate helps here."
    if better == 0 and faster < 0:
        costs = f"costs steps, and gains {max(high, 0):.0f} points at most."
        return f"It {costs}" if high > TOLERATED else f"The gate loses here: it {costs}"
    if better == faster == 0:
        return "Neither is clearly better."
    if better * faster < 0:
        return "It buys accuracy with steps." if better > 0 else "It buys steps with accuracy."
    return "The gate helps here." if better > 0 else "The gate loses here."


def sign_of(row: ResultRow, name: str) -> int:
    """1 or -1 if a difference is above or below 0 by its 95 % interval, otherwise 0."""
    low, high = row[f"{name}_diff_ci"]
    return int(low > 0) - int(high < 0)


def _why(row: ResultRow, base: ResultRow) -> str:
    """The part of the gate that explains a loss, with what the rows show of it; empty if there is none."""
    policy, _ = resolve(row["name"], dict(row["settings"]))
    if not isinstance(policy, Tacg):
        return ""
    gate, (ours, theirs) = policy.gate, (each["commits_by_step"][0] for each in (row, base))
    if sign_of(row, "steps") > 0 >= sign_of(row, "accuracy") and gate.m_base > 1 and ours < theirs:
        return (
            f"Why: it waits until a proposal has lasted {gate.m_base} steps, so it commits {ours:.1f} tokens in the "
            f"first step where {row['base']} commits {theirs:.1f}; where those were right, waiting only costs steps."
        )
    if sign_of(row, "accuracy") < 0 and gate.k_extra > 0:
        return (
            f"Why: in every step it promotes up to {gate.k_extra} tokens that {row['base']} would not commit yet "
            f"({row['tpf']:.2f} tokens per forward instead of {base['tpf']:.2f}), and some of them are wrong."
        )
    return ""
