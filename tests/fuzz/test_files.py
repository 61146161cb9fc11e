"""Thousands of damaged files: results, rows, sets, answers, traces, presets, prompts. Each is read or refused."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import tacg
from tacg.engine.request import resolve
from tacg.experiments.compare import tables as compared
from tacg.experiments.evaluate import evaluate
from tacg.experiments.grading import read_answers
from tacg.experiments.grid import SHAPE, Cell, Sample, impossible
from tacg.experiments.grid import run as run_cells
from tacg.policies import find_preset, get_policy
from tacg.records.flat import read_rows
from tacg.records.journal import Journal
from tacg.records.results import read_results
from tacg.records.rows import Ledger
from tacg.records.summary import paired
from tacg.records.tabulate import rows_of, tables
from tacg.scale.bulk import _asked
from tacg.tasks import get_task
from tacg.trace import read_trace, record, replay
from tacg.trace.player import player_page
from tests.fuzz.damage import DAMAGE, edited, harmed, lines, one, survives, toml

pytestmark = pytest.mark.usefixtures("_no_hang")
SHORT = {"gen_length": 12, "block_length": 6}
SETS = {
    "gsm8k": {"question": "2 + 3?", "answer": "<<2+3=5>>5\n#### 5"},
    "math500": {"problem": "2 + 3?", "solution": "It is \\boxed{5}.", "answer": "5", "unique_id": "a/1"},
    "humaneval": {"task_id": "HumanEval/0", "prompt": "def f(x):\n", "entry_point": "f",
                  "canonical_solution": "    return x\n", "test": "def check(f):\n    assert f(1) == 1\n"},
    "mbpp": {"task_id": 11, "prompt": "Write f.", "code": "def f(x):\n    return x",
             "test_list": ["assert f(1) == 1"], "test_imports": []},
}  # fmt: skip


class Sound(dict[str, tuple[Any, Callable[[Any], bytes], Callable[[Path], Any]]]):
    """By name: a document, how it is written, and who reads it."""

    def __repr__(self) -> str:
        return "…"  # else every failure would print all of it


def ask(name: str, path: Path) -> None:
    """Problems with and without worked examples, in both protocols."""
    for knobs in ({}, {"shots": 1}, {"protocol": "lm-eval"}):
        survives(lambda knobs=knobs: list(get_task(name, data=str(path), **knobs).problems()))  # type: ignore[misc]


def look(path: Path) -> None:
    """A trace in the player, and under another policy."""
    trace = read_trace(path)
    player_page([trace])
    replay(trace, "tacg+klass")


def preset(path: Path) -> None:
    """A preset file for every reader of presets."""
    get_policy(f"tacg:{path}")
    resolve(f"tacg:{path}", {})
    find_preset("tacg", str(path))


@pytest.fixture(scope="module")
def sound(llm: tacg.LLM, tmp_path_factory: pytest.TempPathFactory) -> Sound:
    home = tmp_path_factory.mktemp("sound")
    task = get_task("pocket-sudoku")
    evaluate(llm, task, "tacg", n=3, settings=SHORT, out=home / "results.jsonl")
    results = read_rows(home / "results.jsonl")
    for _ in record(llm, "Hello", "tacg", home / "trace.jsonl", settings={"gen_length": 6}):
        pass
    trace = read_rows(home / "trace.jsonl")
    cell = Cell(task, "confidence", SHORT)
    run_cells(llm, [cell], Sample(2), Ledger(home / "rows.jsonl"))
    rows = read_rows(home / "rows.jsonl")
    problems = {problem.id: problem for problem in task.problems("test", 3)}
    answers = [{"id": name, "answer": "5"} for name in problems]
    prompts = [{"id": number, "prompt": "Hello"} for number in range(3)]

    def ledger(path: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tacg.records.rows.PAUSE", 0)  # nobody else writes here
            row = Ledger(path).get(rows[0]["key"], SHAPE, impossible)
        if row is not None:
            compared([{**row, "name": "x", **paired(row, rows[0] | {"name": "base"})}])

    def resume(path: Path) -> None:
        with Journal(path, results[0], resume=True) as journal:
            journal.append({"number": 9})

    def table(path: Path) -> None:
        read_results(path)
        for each in tables(rows_of([path, path])):
            each.markdown()

    return Sound(
        {
            "results": (results, lines, table),
            "journal": (results, lines, resume),
            "rows": (rows, lines, ledger),
            "trace": (trace, lines, look),
            "answers": (answers, lines, lambda path: read_answers(path, problems)),
            "prompts": (prompts, lines, lambda path: _asked(path, "id", "prompt")),
            "preset": (PRESET, toml, preset),
            **{name: ([item], lines, lambda path, name=name: ask(name, path)) for name, item in SETS.items()},
            **{f"{name} array": ([item], one, lambda path, name=name: ask(name, path)) for name, item in SETS.items()},
        }
    )


PRESET = {"policy": "tacg", "knobs": {"k_extra": 1, "tau_floor": 0.5}, "decode": {"gen_length": 16, "suppress": [1]}}
NAMES = (
    "results",
    "journal",
    "rows",
    "trace",
    "answers",
    "prompts",
    "preset",
    *SETS,
    *(f"{name} array" for name in SETS),
)
clock = itertools.count(1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def damage(sound: Sound, name: str, place: Path, how: Any) -> None:
    document, spell, read = sound[name]
    path = place / ("damaged.toml" if name == "preset" else "damaged.jsonl")
    content = harmed(spell(edited(document, how[0])), how[1])
    path.write_bytes(content)
    os.utime(path, (next(clock),) * 2)  # sets are kept until their file changes
    survives(lambda: read(path))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=500)
@given(how=DAMAGE)
def test_damaged_files(sound: Sound, place: Path, name: str, how: Any) -> None:
    damage(sound, name, place, how)
