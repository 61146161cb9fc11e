"""The tuner finds good knobs, is reproducible, resumes, and writes presets that every command accepts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tacg
from tacg.errors import TacgError
from tacg.experiments.grid import Sample
from tacg.experiments.tune import Range, agreement, by_agreement, by_labels, choose, space_of, tune, write_preset
from tacg.records.rows import Ledger
from tacg.records.stats import front
from tacg.tasks import get_task
from tests.cli.test_cli import tacg as run_tacg


def bowl(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Quality is best at threshold 0.8; steps rise with the threshold and fall with k."""
    quality = 1 - (settings["threshold"] - 0.8) ** 2
    return {"quality": quality, "steps": 100 * settings["threshold"] - settings["k"], "settings": dict(settings)}


def test_the_front_and_the_choice() -> None:
    rows = [{"quality": q, "steps": s} for q, s in [(0.9, 10), (0.8, 5), (0.85, 12), (0.895, 8), (0.7, 5)]]
    assert [(row["quality"], row["steps"]) for row in front(rows)] == [(0.8, 5), (0.895, 8), (0.9, 10)]
    assert choose(rows, 0.0) == rows[0]
    assert choose(rows, 0.01) == rows[3]


def test_search_repeats_and_gets_near_the_best() -> None:
    space = {"threshold": Range(0.1, 0.99), "k": Range(0, 5)}
    start = {"threshold": 0.5, "k": 1}
    rows = tune(bowl, space, 40, seed=3, first=[start])
    assert rows[0]["settings"] == start
    assert [row["settings"] for row in tune(bowl, space, 40, seed=3, first=[start])] == [
        row["settings"] for row in rows
    ]
    assert choose(rows, 0.001)["quality"] > 0.995
    assert any(row["settings"]["k"] == 5 for row in front(rows))


def test_a_second_run_decodes_nothing(llm: tacg.LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, task = tmp_path / "rows.jsonl", get_task("pocket-sudoku")
    space = space_of("tacg", ["threshold", "k_extra"])
    prompts = [problem.prompt for problem in task.problems("dev", 3)]

    def both() -> list[Any]:
        graded = by_labels(llm, task, "tacg", Sample(3, split="dev"), Ledger(path))
        agreed = by_agreement(llm, prompts, "tacg", task.decode, Ledger(path))
        return [[(row["quality"], row["steps"]) for row in tune(judge, space, 3)] for judge in (graded, agreed)]

    first = both()
    monkeypatch.setattr("tacg.experiments.grid.evaluate", None)
    assert both() == first
    assert agreement("1 2 3 4", "1 2 3 4") == 1
    assert agreement("1 2 3 4", "1 2 3 5") == 0.375, "nearly the same is not the same"
    careful = by_agreement(llm, prompts, "schedule", task.decode, Ledger())({}, "itself")
    assert careful["quality"] == 1.0


def test_presets_are_accepted_everywhere(tmp_path: Path, llm: tacg.LLM) -> None:
    path = write_preset(tmp_path / "mine.toml", "tacg", {"threshold": 0.7, "k_extra": 3, "observe": "sequence"}, "made")
    policy = tacg.get_policy(f"tacg:{path}")
    assert policy.values()["threshold"] == 0.7
    assert policy.values()["k_extra"] == 3
    assert llm.generate("Hello", f"tacg:{path}", gen_length=8).policy.startswith("tacg(")
    with pytest.raises(TacgError, match="is a preset of 'tacg'"):
        tacg.get_policy(f"klass:{path}")
    with pytest.raises(TacgError, match="cannot be read"):
        tacg.get_policy(f"tacg:{tmp_path}/none.toml")


def test_the_command_line_tunes_with_and_without_labels(tmp_path: Path) -> None:
    words = ["tune", "-m", "tiny", "-t", "pocket-sudoku", "--quick", "--json", "--out", str(tmp_path)]
    for more in ([], ["--no-labels"]):
        found = json.loads(run_tacg(*words, *more).stdout.splitlines()[-1])
        assert found["front"]
        assert Path(found["preset"]).is_file()
    mine = tmp_path / "mine.txt"
    mine.write_text("One prompt\n\nAnother\n")
    words = ["tune", "-m", "tiny", "--prompts", str(mine), "-s", "gen_length=8", "--quick", "--out", str(tmp_path)]
    assert "agreement with one token per step" in run_tacg(*words).stdout
    assert (tmp_path / "mine.tacg.no-labels.toml").is_file()
