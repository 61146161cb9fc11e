"""A comparison in words: the sentences follow the rows, whichever way these go."""

from __future__ import annotations

from typing import Any

import pytest

from tacg.experiments.verdict import in_words, sign_of


def rows(accuracy: tuple[float, float, float], steps: tuple[float, float, float], first: float) -> list[dict[str, Any]]:
    """Two rows of a task, with the paired differences given as (estimate, low, high)."""
    base = {
        "task": "pocket-math", "name": "confidence", "n": 600, "tpf": 5.0, "settings": {}, "commits_by_step": [4.0],
        "base": None,
    }  # fmt: skip
    gate = base | {
        "name": "tacg", "base": "confidence", "tpf": 6.0, "commits_by_step": [first],
        "accuracy_diff": accuracy[0], "accuracy_diff_ci": [*accuracy[1:]],
        "steps_diff": steps[0], "steps_diff_ci": [*steps[1:]],
    }  # fmt: skip
    return [base, gate]


FEWER, MORE, EQUAL = (-2.0, -2.5, -1.5), (1.0, 0.5, 1.5), (0.1, -0.2, 0.4)
BETTER, WORSE, OPEN, SAME = (0.05, 0.01, 0.09), (-0.1, -0.15, -0.05), (0.0, -0.08, 0.06), (0.0, -0.01, 0.01)


@pytest.mark.parametrize(
    ("accuracy", "steps", "summary"),
    [
        (BETTER, FEWER, "The gate helps here."),
        (BETTER, MORE, "It buys accuracy with steps."),
        (WORSE, FEWER, "It buys steps with accuracy."),
        (WORSE, MORE, "The gate loses here."),
        (SAME, FEWER, "The gate helps here."),
        (OPEN, FEWER, "It saves steps, and costs 8 points at most."),
        (OPEN, MORE, "It costs steps, and gains 6 points at most."),
        (SAME, MORE, "The gate loses here: it costs steps, and gains 1 points at most."),
        (OPEN, EQUAL, "Neither is clearly better."),
    ],
)
def test_the_summary_follows_the_intervals(accuracy: Any, steps: Any, summary: str) -> None:
    first, *rest = in_words(rows(accuracy, steps, 1.0))
    assert summary in first
    assert bool(rest) == (sign_of(rows(accuracy, steps, 1.0)[1], "accuracy") == 0), "what chance can do is said"


def test_four_problems_prove_nothing() -> None:
    few = [row | {"n": 4} for row in rows((0.0, 0.0, 0.0), FEWER, 1.0)]
    assert "It saves steps, and costs 75 points at most." in in_words(few)[0]


def test_a_loss_comes_with_its_reason() -> None:
    slow, *_ = in_words(rows(SAME, MORE, 1.0))
    assert "it commits 1.0 tokens in the first step where confidence commits 4.0" in slow
    assert "Why" not in in_words(rows(SAME, MORE, 5.0))[0], "a reason that the rows contradict is not given"
    wrong, *_ = in_words(rows(WORSE, FEWER, 1.0))
    assert "promotes up to 2 tokens" in wrong
    assert "(6.00 tokens per forward instead of 5.00)" in wrong
    for steps in (FEWER, MORE):
        assert "Why" not in in_words(rows(BETTER, steps, 1.0))[0]
    assert in_words(rows(BETTER, FEWER, 1.0)[:1]) == [], "nothing to compare, nothing to say"
