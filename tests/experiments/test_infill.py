"""Tasks that are canvases instead of prompts: what is counted, kept, resumed and diagnosed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import tacg
from tacg.canvas import Canvas
from tacg.cli.tune import asked_of
from tacg.experiments import tune
from tacg.experiments.compare import compare, tables
from tacg.experiments.diagnose import FIELDS, collect
from tacg.experiments.evaluate import evaluate
from tacg.experiments.grid import Sample
from tacg.experiments.paper_study import Scale, Study
from tacg.models.judges import JUDGES
from tacg.records.results import read_results
from tacg.records.rows import Ledger
from tacg.tasks import get_task
from tests.cli.test_cli import document

if TYPE_CHECKING:
    from pathlib import Path


def test_only_what_is_written_counts(llm: tacg.LLM) -> None:
    out = llm.fill("abc⟨4⟩defghi⟨2⟩jk", "confidence")
    assert (len(out.tokens), out.given) == (14, 8)
    assert out.tpf == pytest.approx(6 / out.forwards)
    assert llm.generate("Hello", gen_length=8).given == 0


def test_a_canvas_is_evaluated_and_resumed(llm: tacg.LLM, tmp_path: Path) -> None:
    task, file = get_task("reactions-30"), tmp_path / "run.jsonl"
    first = evaluate(llm, task, "tacg", n=3, settings={"threshold": 0.3}, out=file)
    assert (first.row["task"], first.row["accuracy"]) == ("reactions-30", 0)
    for item, problem in zip(first.items, task.problems(n=3), strict=True):
        assert item.tokens == sum(item.pace) == len(problem.data["holes"])
    header, items = read_results(file)
    assert header["run"]["task"] == "reactions-30"
    assert tuple(items.values()) == first.items
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:2]) + "\n")
    again = evaluate(llm, task, "tacg", n=3, settings={"threshold": 0.3}, out=file, resume=True)
    assert again.items == first.items
    assert file.read_text().splitlines() == lines


def test_tasks_with_other_knobs_are_other_tasks(llm: tacg.LLM) -> None:
    tasks = [get_task(name) for name in ("reactions-30", "reactions-30-span", "pocket-sudoku")]
    rows = compare(llm, tasks, ["confidence"], Sample(2), {"threshold": 0.1})
    assert [row["task"] for row in rows] == ["reactions-30", "reactions-30-span", "pocket-sudoku"]
    drawn = tables(rows)
    assert [table.title for table in drawn] == [row["task"] for row in rows]
    assert all(len(line) == len(table.columns) for table in drawn for line in table.lines)
    assert {"tokens %", "valid %"} <= {*drawn[0].columns}
    assert "Δ steps" not in drawn[0].columns, "there is nothing to compare with"
    assert not {"tokens %", "valid %"} & {*tables(rows[2:])[0].columns}


def test_tuning_without_labels_fills_the_canvas(llm: tacg.LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Holes are filled, and tokens that were given are not counted."""
    task = get_task("reactions-30")
    problems = list(task.problems("dev", 3))
    asked, decode, what = asked_of(task, None, 3, 0)
    assert (asked, what) == ([problem.asked for problem in problems], "reactions-30")
    wanted = tune.careful_answers(llm, asked, decode, Ledger())
    assert [len(text.split(" ")) for text in wanted] == [len(problem.data["holes"]) for problem in problems]
    assert tune.by_agreement(llm, asked, "schedule", decode, Ledger())({}, "")["quality"] == 1

    caught: list[Any] = []
    monkeypatch.setattr(tune, "by_agreement", lambda llm, prompts, *_: caught.extend(prompts))
    Study(llm, [task], Scale.glance(), tmp_path, bar=lambda *_: None).judge(task, "tacg", False, 3, None)
    assert caught == asked


def test_a_file_of_prompts_may_have_canvases(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("What is 3 plus 4?\n\nCC⟨2⟩>>CCO\n", encoding="utf-8")
    asked, decode, what = asked_of(None, tmp_path / "mine.txt", 9, 0)
    assert (asked, decode, what) == (["What is 3 plus 4?", Canvas.parse("CC⟨2⟩>>CCO")], {}, "mine")


def judge() -> tacg.LLM:
    if JUDGES["rxnmapper"].installed() is None:
        pytest.skip("pip install --no-deps rxnmapper")
    return tacg.load("rxnmapper")


def test_a_judge_fills_reactions() -> None:
    llm = judge()
    rows = compare(llm, [get_task("reactions-30")], ["confidence", "tacg"], Sample(12))
    for row in rows:
        assert row["score"] > 0.85
        assert row["accuracy"] > 0.2
        assert row["valid"] > 0.5
    reference = FIELDS.index("reference")
    found = collect(llm, get_task("reactions-30"), "confidence", Sample(6))
    assert found[:, reference].mean() > 0.7, "proposals are compared with the token that was masked there"


def test_the_command_line_compares_on_a_judge() -> None:
    judge()
    words = ("--model", "rxnmapper", "--task", "reactions", "--policy", "confidence", "--n", "4")
    (row,) = document("compare", *words, "--knob", "masked=0.2", "--knob", "where=span")["rows"]  # type: ignore[misc]
    assert (row["task"], row["n"], row["model"]) == ("reactions-20-span", 4, "rxnmapper")
