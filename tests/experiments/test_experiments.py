"""Intervals, significance tests and AUP; rows of evaluations; plots."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import tacg
from tacg.cli.parallel_runs import run_apart
from tacg.errors import TacgError
from tacg.experiments.ablate import ablate
from tacg.experiments.compare import compare
from tacg.experiments.diagnose import FIELDS, aucs, bins, diagnose
from tacg.experiments.evaluate import evaluate
from tacg.experiments.frontier import against_frontier
from tacg.experiments.grid import Sample
from tacg.experiments.paper_report import judgement
from tacg.experiments.paper_study import Scale, Study
from tacg.experiments.sweep import Axis, sweep, tables
from tacg.records.flat import read_rows
from tacg.records.plots import draw_frontier, draw_heat, draw_match, draw_plane
from tacg.records.rows import Ledger, write_rows
from tacg.records.stats import aup, mcnemar, paired_bootstrap, wilson
from tacg.records.tables import Section, write_page
from tacg.tasks import get_task
from tests.cli.test_cli import tacg as run_tacg

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
    timed = {"seconds", "tokens_per_second", "processor_seconds", "tokens_per_processor_second", "batch_size"}
    assert next({k: v for k, v in run.row.items() if k not in timed} for run in runs) == {
        k: v for k, v in runs[1].row.items() if k not in timed
    }
    row, items = runs[0].row, runs[0].items
    assert row["tpf"] == pytest.approx(sum(96 / item.forwards for item in items) / 6)
    assert row["tpf_ratio"] == pytest.approx(6 * 96 / sum(item.forwards for item in items))
    assert row["accuracy"] == 0


def test_compare_pairs_gated_policies_with_their_base(llm: tacg.LLM, tmp_path: Path) -> None:
    rows = compare(llm, [get_task("pocket-sudoku")], ["schedule", "confidence", "tacg"], Sample(4), {"threshold": 0.5})
    assert [row["base"] for row in rows] == [None, None, "confidence"]
    assert rows[2]["steps_diff"] == pytest.approx(rows[2]["steps"] - rows[1]["steps"])
    assert rows[1]["policy"] == "confidence(threshold=0.5)"
    write_rows(tmp_path / "deep/rows.jsonl", rows)
    assert read_rows(tmp_path / "deep/rows.jsonl") == json.loads(json.dumps(rows))
    picture = draw_plane(rows, tmp_path / "plane.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_line_evaluates_and_compares(tmp_path: Path) -> None:
    done = run_tacg("eval", "-t", "pocket-sudoku", "-m", "tiny", "--n", "3", "--seed", "7", "--json", "--watch")
    row = json.loads(done.stdout.splitlines()[-1])
    assert (row["task"], row["n"], row["seed"]) == ("pocket-sudoku", 3, 7)
    assert "Solve these 4 by 4 sudokus" in done.stderr
    assert "wrong, expected" in done.stderr
    done = run_tacg("compare", "-t", "pocket-sudoku", "-m", "tiny", "--n", "2", "--out", str(tmp_path / "run"))
    assert "tacg+klass" in done.stdout
    assert len(read_rows(tmp_path / "run/rows.jsonl")) == 4
    assert (tmp_path / "run/plane.png").is_file()
    assert "def " in run_tacg("tasks", "pocket-code").stdout


def test_an_experiment_goes_on_where_it_was(llm: tacg.LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tasks = tmp_path / "rows.jsonl", [get_task("pocket-sudoku")]
    whole = ablate(llm, tasks, ["tacg"], Sample(3), ledger=Ledger(path))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], lines[2][:50]]))  # killed while the third row was written
    calls = []
    monkeypatch.setattr("tacg.experiments.grid.evaluate", lambda *a, **k: calls.append(a) or evaluate(*a, **k))
    again = ablate(llm, tasks, ["tacg"], Sample(3), ledger=Ledger(path))
    assert len(calls) == 2
    timed = {"seconds", "tokens_per_second", "processor_seconds", "tokens_per_processor_second"}
    assert [{k: v for k, v in row.items() if k not in timed} for row in again] == [
        {k: v for k, v in row.items() if k not in timed} for row in whole
    ]
    assert len(read_rows(path)) == 4
    assert len(ablate(llm, tasks, ["tacg"], Sample(4), ledger=Ledger(path))) == 4
    assert len(calls) == 6, "another sample is another experiment"


def test_ablation_turns_the_parts_off(llm: tacg.LLM) -> None:
    rows = ablate(llm, [get_task("pocket-sudoku")], ["tacg"], Sample(6), {"threshold": 0.8, "gen_length": 32})
    named = {row["name"]: row for row in rows}
    assert "k_extra=0" in named["HG only"]["policy"]
    assert "m_base=1" in named["TILG only"]["policy"]
    assert named["baseline"]["policy"] == "confidence(threshold=0.8)"
    assert (
        len(
            {
                json.dumps(row["settings"] | {"k_extra": 0, "m_base": 0, "m_extra": 0}, sort_keys=True)
                for row in rows[1:]
            }
        )
        == 1
    )
    assert named["baseline"]["settings"]["gen_length"] == named["TACG"]["settings"]["gen_length"] == 32
    assert len({row["steps"] for row in rows}) > 2, "each part does something"
    change = named["TACG"]["steps"] - named["baseline"]["steps"]
    assert named["TACG"]["steps_diff"] == pytest.approx(change)
    for row in rows:
        assert sum(row["commits_by_step"]) == pytest.approx(32, abs=0.01)


def test_sweeps_move_knobs_together_and_draw(llm: tacg.LLM, tmp_path: Path) -> None:
    x, y = Axis(("m_base", "m_extra"), (1, 3)), Axis(("beta",), (0.0, 0.9))
    rows = sweep(llm, [get_task("pocket-sudoku")], ["tacg"], x, y, Sample(2))
    assert [(row["x"], row["y"]) for row in rows] == [(1, 0.0), (1, 0.9), (3, 0.0), (3, 0.9)]
    assert "m_base=1, m_extra=1" in rows[0]["policy"]
    assert draw_heat(rows, tmp_path / "heat.png").stat().st_size > 5000
    lines = sweep(
        llm, [get_task("pocket-sudoku")], ["confidence", "tacg"], Axis(("threshold",), (0.5, 0.9)), None, Sample(2)
    )
    assert ["saved" in row and "gained" in row for row in lines] == [False, False, True, True]
    assert tables(lines)[0].columns[-2:] == ("steps saved %", "accuracy gained")
    assert draw_frontier(lines, tmp_path / "lines.png").stat().st_size > 5000
    section = Section("Lines", "Words.\n\n- <i>one</i>\n- two", pictures=[tmp_path / "lines.png"], note="n = 2")
    page = write_page(tmp_path / "page.html", "<b>", [section]).read_text()
    assert "<li>&lt;i&gt;one&lt;/i&gt;</li><li>two</li>" in page
    assert "&lt;b&gt;" in page
    assert "http" not in page


def test_a_frontier_reaches_as_far_as_what_is_held_against_it(llm: tacg.LLM, tmp_path: Path) -> None:
    task = get_task("pocket-sudoku")
    study = Study(llm, [task], Scale.glance(), tmp_path, lambda *_: contextlib.nullcontext(lambda *_: None))
    point = {"task": task.name, "spec": "confidence", "steps": 9.0}
    assert study.slower(task, "confidence", [point, point | {"spec": "tacg", "steps": 8.0}], 2) == []
    more = study.slower(task, "confidence", [point, point | {"spec": "tacg", "steps": 1e9}], 2)
    assert [row["name"] for row in more][:2] == ["confidence 0.95", "confidence 0.975"]
    assert 5 < len(more) < 10


def test_auc_sees_what_a_signal_knows_beyond_confidence() -> None:
    rng = numpy.random.default_rng(0)
    n = 4000
    field = {name: numpy.zeros(n) for name in FIELDS}
    field["problem"] = rng.integers(0, 50, n)
    field["confidence"] = 1 - rng.random(n) ** 3
    right = rng.random(n) < field["confidence"]
    field["final"] = right
    field["streak"] = right + 1
    field["margin"] = field["confidence"]
    field["kl"] = rng.random(n)
    data = numpy.stack([field[name] for name in FIELDS], axis=1).astype(float)
    scores = aucs(data)["final"]
    assert scores["streak"] == [1.0, 1.0, 1.0]
    assert scores["support"][0] == 0.5, "a constant orders nothing"
    assert scores["kl"][1] < 0.5 < scores["kl"][2]
    assert scores["margin"][0] == pytest.approx(0.5, abs=0.02), "a copy of confidence tells nothing more"
    found = [row for row in bins(data) if row["signal"] == "confidence" and row["target"] == "final"]
    assert sum(row["count"] for row in found) == n
    assert all(row["match_ci"][0] <= row["match"] <= row["match_ci"][1] for row in found)
    assert all(abs(row["match"] - row["mean_confidence"]) < 0.06 for row in found), "made to be calibrated"
    data[:, FIELDS.index("committed")] = right
    assert sum(row["match"] for row in bins(data) if row["target"] == "final") == 0, (
        "a commit is no evidence for itself"
    )
    data[:, FIELDS.index("first")] = 1
    assert not [row for row in bins(data) if row["signal"] == "support"], "nothing has changed at a first observation"


def test_diagnosis_counts_every_proposal(llm: tacg.LLM, tmp_path: Path) -> None:
    (row,) = diagnose(llm, [get_task("pocket-sudoku")], "confidence", Sample(3), Ledger(tmp_path / "rows.jsonl"))
    for signal in ("streak", "margin", "entropy"):
        mine = [each for each in row["bins"] if (each["signal"], each["target"]) == (signal, "reference")]
        assert sum(each["count"] for each in mine) == row["proposals"]
    assert draw_match([row], tmp_path / "match.png").stat().st_size > 5000
    together = [each for each in row["bins"] if each["signal"] == "support given streak"]
    alone = [each for each in row["bins"] if each["signal"] == "support"]
    assert sum(each["count"] for each in together) == sum(each["count"] for each in alone) > 0


def test_every_experiment_has_a_glance(tmp_path: Path) -> None:
    for words in (["ablate"], ["sweep", "frontier"], ["sweep", "fig3"], ["sweep", "fig4"], ["diagnose"]):
        out = tmp_path / "-".join(words)
        assert "pocket-sudoku" in run_tacg(*words, "-m", "tiny", "--quick", "--n", "4", "--out", str(out)).stdout
        assert (out / "page.html").is_file()
        assert list(out.glob("*.png"))
        assert read_rows(out / "rows.jsonl")


def test_the_report_is_drawn_from_rows(tmp_path: Path) -> None:
    words = ["report", "--quick", "-m", "tiny", "--home", str(tmp_path / "rows"), "--out", str(tmp_path / "r.md")]
    assert run_tacg(*words, "--jobs", "2").returncode == 0
    rows = (tmp_path / "rows/rows.jsonl").read_bytes()
    report = (tmp_path / "r.md").read_text()
    for row in read_rows(tmp_path / "rows/rows.jsonl"):
        if row.get("split") == "test":
            assert f"| {row['steps']:.1f} |" in report
    pictures = re.findall(r"\]\((.*?\.png)\)", report)
    assert len(pictures) == 6
    assert all((tmp_path / picture).is_file() for picture in pictures)
    assert run_tacg(*words).returncode == 0
    assert (tmp_path / "r.md").read_text() == report, "from the same rows the same report"
    assert (tmp_path / "rows/rows.jsonl").read_bytes() == rows, "nothing was decoded twice"


def test_processes_of_their_own_append_to_one_file_or_say_why_not(tmp_path: Path) -> None:
    """Rows larger than any buffer, from several processes at once, arrive whole; a failing process is quoted."""
    program = "from pathlib import Path; from tacg.records.rows import write_rows; import sys\n"
    program += "for number in range(200): write_rows(Path(sys.argv[1]), [{'from': sys.argv[2], 'long': 'x' * 20000}])"
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "rows.jsonl"), name]) for name in ("a", "b")
    ]
    assert [child.wait(timeout=300) for child in children] == [0, 0]
    rows = read_rows(tmp_path / "rows.jsonl")
    assert sorted(row["from"] for row in rows) == ["a"] * 200 + ["b"] * 200
    assert {len(row["long"]) for row in rows} == {20000}
    with pytest.raises(TacgError, match=r"(?s)process for wrong ended with 2.*No such command"):
        run_apart({"wrong": ["nonsense"]}, 1, tmp_path / "rows.jsonl")


def test_a_point_against_a_frontier() -> None:
    """Right marks and steps are the same for every problem of a kind, so that the numbers can be worked out by hand."""

    def made(accuracy: float, steps: int) -> dict[str, object]:
        hits = round(100 * accuracy)
        return {"correct": "1" * hits + "0" * (100 - hits), "item_steps": [steps] * 100, "accuracy": accuracy}

    base = [made(0.6, 10), made(0.8, 20), made(0.7, 25), made(0.9, 40)]  # the third is beaten by the second
    found = against_frontier(made(0.8, 15), base)
    assert found["saved"] == pytest.approx(0.25)
    assert found["gained"] == pytest.approx(0.1), "at 15 steps the frontier has 0.7"
    between = against_frontier(made(0.85, 30), base)
    assert between["saved"] == pytest.approx(0.0)
    assert between["gained"] == pytest.approx(0.0)
    assert not between["beyond"]
    above = against_frontier(made(0.95, 30), base)
    assert above["beyond"]
    assert above["saved"] == pytest.approx(0.25)
    assert above["gained"] == pytest.approx(0.1)
    below = against_frontier(made(0.5, 8), base)
    assert below["saved"] == 0, "faster than all, but less accurate than all"
    assert below["gained"] == pytest.approx(-0.1)
    assert [judgement(each) for each in (found, between, above, below)] == [
        "helps", "no clear difference", "helps", "hurts",
    ]  # fmt: skip
    assert found["saved_ci"][0] - 1e-9 <= found["saved"] <= found["saved_ci"][1] + 1e-9
