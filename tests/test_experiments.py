"""Numbers about numbers: intervals, tests, AUP; rows of evaluations; the picture."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import tacg
from tacg.experiments.compare import compare, read_rows, write_rows
from tacg.experiments.evaluate import evaluate
from tacg.experiments.picture import draw_plane
from tacg.experiments.stats import aup, mcnemar, paired_bootstrap, wilson
from tacg.tasks import get_task
from tests.test_cli import TACG

KEYS = "task model policy n seed accuracy accuracy_ci steps tpf tpf_ratio forwards seconds tokens_per_second"


def test_wilson_against_known_values() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 20)[0] == 0
    assert wilson(20, 20)[1] == 1


def test_mcnemar_is_exact() -> None:
    assert mcnemar([True] * 5 + [False] * 5, [False] * 5 + [False] * 5) == pytest.approx(2 / 2**5)
    assert mcnemar([True, False], [False, True]) == 1.0
    assert mcnemar([True], [True]) == 1.0


def test_bootstrap_is_paired_and_seeded() -> None:
    ours = [float(n % 7) for n in range(300)]
    low, high = paired_bootstrap([x + 1 for x in ours], ours)
    assert (low, high) == (1.0, 1.0), "a constant difference has no spread, whatever the items do"
    noisy = [x + (n % 2) for n, x in enumerate(ours)]
    assert paired_bootstrap(noisy, ours) == paired_bootstrap(noisy, ours)
    low, high = paired_bootstrap(noisy, ours)
    assert low < 0.5 < high


def test_aup_by_hand() -> None:
    """A flat line is accuracy times TPF; a drop of more than five points does not count at all."""
    assert aup([(1.0, 80.0), (3.0, 80.0)]) == pytest.approx(240.0)
    assert aup([(1.0, 80.0), (3.0, 70.0)]) == pytest.approx(80.0)
    half = 78 * 2.718281828459045 ** (-3 * (1 - 78 / 80))
    assert aup([(1.0, 80.0), (3.0, 78.0)]) == pytest.approx(80 + 2 * (80 + half) / 2)


def test_rows_have_their_keys_and_repeat(llm: tacg.LLM) -> None:
    """On tiny every answer is wrong, but the accounting is the same."""
    task = get_task("pocket-math")
    runs = [evaluate(llm, task, "tacg", n=6, seed=7, batch_size=size) for size in (6, 4)]
    for key in KEYS.split():
        assert key in runs[0].row
    timed = {"seconds", "tokens_per_second", "batch_size"}
    assert next({k: v for k, v in run.row.items() if k not in timed} for run in runs) == {
        k: v for k, v in runs[1].row.items() if k not in timed
    }
    row, items = runs[0].row, runs[0].items
    assert row["tpf"] == pytest.approx(sum(96 / item.forwards for item in items) / 6)
    assert row["tpf_ratio"] == pytest.approx(6 * 96 / sum(item.forwards for item in items))
    assert row["accuracy"] == 0


def test_compare_pairs_gated_policies_with_their_base(llm: tacg.LLM, tmp_path: Path) -> None:
    rows = compare(
        llm, [get_task("pocket-sudoku")], ["schedule", "confidence", "tacg"], n=4, settings={"threshold": 0.5}
    )
    assert [row["base"] for row in rows] == [None, None, "confidence"]
    assert rows[2]["steps_diff"] == pytest.approx(rows[2]["steps"] - rows[1]["steps"])
    assert rows[1]["policy"] == "confidence(threshold=0.5)"
    write_rows(tmp_path / "deep/rows.jsonl", rows)
    assert read_rows(tmp_path / "deep/rows.jsonl") == json.loads(json.dumps(rows))
    picture = draw_plane(rows, tmp_path / "plane.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_line_evaluates_and_compares(tmp_path: Path) -> None:
    words = [TACG, "eval", "-t", "pocket-sudoku", "-m", "tiny", "--n", "3", "--seed", "7", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    row = json.loads(done.stdout.splitlines()[-1])
    assert (row["task"], row["n"], row["seed"]) == ("pocket-sudoku", 3, 7)
    words = [TACG, "compare", "-t", "pocket-sudoku", "-m", "tiny", "--n", "2", "--out", str(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert "tacg+klass" in done.stdout
    assert len(read_rows(tmp_path / "run/rows.jsonl")) == 4
    assert (tmp_path / "run/plane.png").is_file()
    done = subprocess.run([TACG, "tasks", "pocket-code"], capture_output=True, text=True, timeout=60, check=True)
    assert "def " in done.stdout
