"""What README and docs answer to "does TACG help?" is what the rows say."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tacg.experiments.does_it_help import MARKS, answer, gains, runs, with_answer, with_runs
from tacg.records.flat import read_rows

HOME = Path(__file__).parents[2]
JUDGED = ("judges/rxnmapper", "judges/rxnfp", "judges/antiberty")
STUDIES = ("archive/results-1", "archive/results-2", "archive/results-3", "arena", *JUDGED)


def row(policy: str, accuracy: float, steps: int, n: int = 400, **settings: Any) -> dict[str, Any]:
    rng = random.Random(0)  # the same problems are easy for all
    correct = "".join("1" if rng.random() < accuracy else "0" for _ in range(n))
    found = {"task": "t", "model": "m", "policy": policy, "n": n, "seed": 0, "split": "test", "settings": settings}
    return {**found, "correct": correct, "item_steps": [steps] * n, "accuracy": correct.count("1") / n, "steps": steps}


def test_readme_and_docs_are_up_to_date() -> None:
    points = gains(each for name in STUDIES for each in read_rows(HOME / "docs" / name / "rows.jsonl"))
    for page, written in (("README.md", with_answer), ("docs/does-it-help.md", with_runs)):
        text = (HOME / page).read_text(encoding="utf-8")
        assert text == written(text, points), "run `make decoder-pages`"


def test_it_is_compared_with_every_threshold_on_the_same_problems() -> None:
    base = [row("confidence", 0.5, 10, threshold=0.5), row("confidence(threshold=0.9)", 0.7, 20, threshold=0.9)]
    better = row("tacg", 0.9, 10)
    (point,) = gains([*base, better, row("tacg", 0.1, 5, n=120), row("klass", 1.0, 1)])
    assert point["n"] == 400, "the sample with the most problems"
    assert 0.35 < point["gained"] < 0.45
    assert "| m | t | **yes** | 1 of 1 runs | 0 of 1 runs |" in answer([point])
    assert "**no, it hurts**" in answer(gains([*base, row("tacg", 0.5, 20)]))
    assert f"| m | t | 0 | `tacg` | {100 * better['accuracy']:.1f} | 10.0 | +" in runs([point])
    assert gains([base[0], better]) == [], "one threshold is no frontier"
    assert gains([*base, {**better, "seed": 1}]) == [], "other problems"
    assert gains([*base, {**better, "model": "other"}]) == []
    assert "No rows yet" in answer([])
    long = row("confidence", 0.6, 15, n=800, threshold=0.7)
    assert gains([base[1], long, better])[0]["n"] == 400, "a longer row is cut to the first problems"
    assert MARKS[0] in with_answer(f"{MARKS[0]}\n{MARKS[1]}", [])
