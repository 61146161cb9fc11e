"""Results files: whatever interrupts a run, the final file is the same."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import tacg
from tacg import TacgError
from tacg.experiments.evaluate import evaluate
from tacg.experiments.grading import read_answers
from tacg.experiments.grid import Cell, Sample
from tacg.experiments.grid import run as run_cells
from tacg.records.results import read_results
from tacg.records.rows import Ledger
from tacg.records.tabulate import rows_of, tables
from tacg.tasks import get_task
from tacg.trace import read_trace
from tests.cli.test_cli import ROOT, TACG
from tests.cli.test_cli import tacg as run_tacg

DOCS = ROOT / "docs"

TASK = get_task("pocket-sudoku")
SHORT = {"gen_length": 12, "block_length": 6}


def run(llm: tacg.LLM, out: Path, n: int = 6, policy: str = "tacg", **more: object) -> Path:
    evaluate(llm, TASK, policy, n=n, settings=SHORT, out=out, **more)  # type: ignore[arg-type]
    return out


@pytest.fixture(scope="module")
def whole(llm: tacg.LLM, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return run(llm, tmp_path_factory.mktemp("whole") / "run.jsonl").read_bytes()


def test_the_header_says_what_the_answers_depend_on(whole: bytes, llm: tacg.LLM) -> None:
    header, *rows = map(json.loads, whole.splitlines())
    assert header["run"]["n"] == 6
    assert header["decode"]["gen_length"] == 12
    assert header["policy"]["k_extra"] == 2
    assert header["model"] == llm.identity
    assert {"tacg", "torch"} == header["versions"].keys()
    assert [row["number"] for row in rows] == list(range(6))
    assert [row["id"] for row in rows] == [problem.id for problem in TASK.problems("test", 6)]
    for row in rows:
        assert len(row["pace"]) == row["steps"]
        assert sum(row["pace"]) == 12


@pytest.mark.parametrize("cut", [1, 700, 0.5, 0.8, -1, -30])
def test_a_torn_file_is_mended_and_ends_the_same(llm: tacg.LLM, tmp_path: Path, whole: bytes, cut: float) -> None:
    """Cut anywhere: in the header, in the middle of a row, at the last line break."""
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(whole[: int(cut * len(whole)) if isinstance(cut, float) else cut])
    assert run(llm, torn, batch_size=2, resume=True).read_bytes() == whole


def test_rows_may_come_in_any_order(llm: tacg.LLM, tmp_path: Path, whole: bytes) -> None:
    lines = whole.splitlines(keepends=True)
    (tmp_path / "run.jsonl").write_bytes(b"".join([lines[0], lines[5], lines[2]]))
    seen = []
    path = run(llm, tmp_path / "run.jsonl", resume=True, on_item=lambda item: seen.append(item.id))
    assert path.read_bytes() == whole
    assert sorted(seen) == sorted(json.loads(line)["id"] for line in lines[1:])


def test_a_finished_run_is_not_decoded_again(llm: tacg.LLM, tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "run.jsonl").write_bytes(whole)
    again = evaluate(llm, TASK, "tacg", n=6, settings=SHORT, out=tmp_path / "run.jsonl", resume=True)
    assert (again.row["tokens_per_second"], again.row["n"]) == (0.0, 6)


def test_settings_are_not_mixed(llm: tacg.LLM, tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(whole)
    with pytest.raises(TacgError, match=r"exists already: continue it with --resume"):
        run(llm, path)
    with pytest.raises(TacgError, match=r"run\.n: 6 there, 7 here"):
        run(llm, path, n=7, resume=True)
    with pytest.raises(TacgError, match=r"policy\.threshold: 0\.9 there, 0\.6 here"):
        evaluate(llm, TASK, "tacg", n=6, settings=SHORT | {"threshold": 0.6}, out=path, resume=True)
    other = llm.identity | {"weights": "another"}
    path.write_bytes(whole.replace(llm.identity["weights"].encode(), b"another"))
    with pytest.raises(TacgError, match=rf"model\.weights: {other['weights']} there"):
        run(llm, path, resume=True)
    path.write_text('{"task": "pocket-math"}\n')
    with pytest.raises(TacgError, match="is not a results file"):
        run(llm, path, resume=True)
    for foreign in (b'{"my": "data"}', b"\x00\x01binary"):  # without a line's end: not what a crash of ours leaves
        path.write_bytes(foreign)
        with pytest.raises(TacgError, match="is not a results file"):
            run(llm, path, resume=True)
        assert path.read_bytes() == foreign
        with pytest.raises(TacgError, match="no whole row"):
            Ledger(path)
        assert path.read_bytes() == foreign
    path.write_bytes(whole.replace(b'"number": 2', b'"number" 2'))
    with pytest.raises(TacgError, match="line 4 is not valid JSON"):
        run(llm, path, resume=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"number": 4}, r"line 4: problem 4 of this run is '[\w-]+', but the row answers '[\w-]+'"),
        ({"id": "another"}, r"line 4: problem 2 of this run is '[\w-]+', but the row answers 'another'"),
        ({"number": 6}, "line 4: `number` must be below the 6 problems of the run, got 6"),
        ({"number": -1}, "line 4: `number` must be a whole number >= 0, got -1"),
        ({"number": True}, "line 4: `number` must be a whole number"),
        ({"steps": 0, "pace": []}, "line 4: `steps` must be a whole number >= 1, got 0"),
        ({"forwards": 0}, "line 4: `forwards` must be a whole number >= 1, got 0"),
        ({"tokens": -3}, "line 4: `tokens` must be a whole number >= 0, got -3"),
        ({"tokens": 999}, "line 4: `tokens` must be at most the 12 commits of `pace`, got 999"),
        ({"pace": [12, 0]}, r"line 4: `pace` must have an entry for each of the \d+ steps, got 2"),
        ({"score": 1.5}, "line 4: `score` must be a number from 0 to 1, got 1.5"),
        ({"score": float("nan")}, "line 4: `score` must be a number from 0 to 1, got nan"),
        ({"correct": "yes"}, "line 4: `correct` must be true or false, got 'yes'"),
        ({"text": None}, "line 4: `text` must be text, got None"),
        ({"mood": 1}, "line 4: `mood` is not a field of this version's rows"),
    ],
)
def test_rows_that_cannot_be_are_named(
    llm: tacg.LLM, tmp_path: Path, whole: bytes, change: dict[str, object], told: str
) -> None:
    path, lines = tmp_path / "run.jsonl", whole.splitlines(keepends=True)
    lines[3] = json.dumps(json.loads(lines[3]) | change).encode() + b"\n"
    path.write_bytes(b"".join(lines[:4]))
    with pytest.raises(TacgError, match=told):
        run(llm, path, resume=True)
    assert path.read_bytes() == b"".join(lines[:4]), "nothing of it was touched"
    if "this run" not in told:  # without the problems, nobody knows which ids they have
        with pytest.raises(TacgError, match=told):
            read_results(path)


def test_a_row_that_is_there_twice_is_named(llm: tacg.LLM, tmp_path: Path, whole: bytes) -> None:
    path, lines = tmp_path / "run.jsonl", whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], lines[1]]))
    with pytest.raises(TacgError, match=r"line 4: '[\w-]+' is answered a second time, the first is in line 2"):
        run(llm, path, resume=True)
    path.write_bytes(b"".join([*lines[:3], lines[3].replace(b'"number": 2', b'"number": 1')]))
    with pytest.raises(TacgError, match="line 4: a second row has the number 1, the first is in line 3"):
        read_results(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"n": -5}, "`n` must be a whole number >= 1, got -5"),
        ({"accuracy": 1.2}, "`accuracy` must be a number from 0 to 1, got 1.2"),
        ({"steps": "many"}, "`steps` must be a number >= 0, got 'many'"),
        ({"correct": "1"}, "`correct` must be 2 zeros and ones, and `item_steps` 2 numbers, one for each problem"),
        ({"item_steps": [1, "x"]}, r"`item_steps\[1\]` must be a whole number >= 0, got 'x'"),
    ],
)
def test_rows_of_experiments_that_cannot_be_are_named(
    llm: tacg.LLM, tmp_path: Path, change: dict[str, object], told: str
) -> None:
    path, cells = tmp_path / "rows.jsonl", [Cell(TASK, policy, SHORT) for policy in ("confidence", "tacg")]
    run_cells(llm, cells, Sample(2), Ledger(path))
    first, second = path.read_bytes().splitlines()
    path.write_bytes(first + b"\n" + json.dumps(json.loads(second) | change).encode() + b"\n")
    with pytest.raises(
        TacgError, match=rf"rows\.jsonl, line 2: {told}; delete the line, and it will be computed again"
    ):
        run_cells(llm, cells, Sample(2), Ledger(path))


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link(llm: tacg.LLM, tmp_path: Path, whole: bytes, there: bool) -> None:
    """Rows go through the link to the file, which keeps its mode; no other files are left behind."""
    target, link = tmp_path / "disk/run.jsonl", tmp_path / "run.jsonl"
    target.parent.mkdir()
    link.symlink_to(target)
    if there:
        target.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
        target.chmod(0o640)
    run(llm, link, resume=there)
    assert link.is_symlink()
    assert target.read_bytes() == whole
    if there:
        assert target.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in target.parent.iterdir()] == ["run.jsonl"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["disk", "run.jsonl"]


FULL = """
import resource, sys
from pathlib import Path
import tacg
from tacg.experiments.evaluate import evaluate
from tacg.tasks import get_task

llm = tacg.load("tiny")
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # no file may grow beyond: what a full disk does
try:
    settings = {"gen_length": 12, "block_length": 6}
    evaluate(llm, get_task("pocket-sudoku"), "tacg", n=64, settings=settings, out=Path(sys.argv[1]))
except tacg.TacgError as error:
    print(error)
"""


def test_a_disk_that_fills_up_loses_no_row(llm: tacg.LLM, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    words = [sys.executable, "-c", textwrap.dedent(FULL), str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    assert "run.jsonl' cannot be written: File too large" in done.stdout
    assert path.read_bytes().endswith(b"}\n"), "no half row"
    assert 0 < len(read_results(path)[1]) < 64
    assert len(read_results(run(llm, path, n=64, resume=True))[1]) == 64


def test_two_writers_are_one_too_many(llm: tacg.LLM, tmp_path: Path, whole: bytes) -> None:
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "run.jsonl"
    path.write_bytes(whole)
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(TacgError, match="being written by another process"):
            run(llm, path, resume=True)


def test_a_failed_row_is_no_result(llm: tacg.LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row has unusable logits: the others are kept, the run ends with the error, and can be resumed later."""
    path, real = tmp_path / "run.jsonl", llm.model.forward  # type: ignore[attr-defined]
    calls = []

    def broken(tokens, spans, select):  # type: ignore[no-untyped-def]
        logits = real(tokens, spans, select)
        calls.append(1)
        if len(calls) == 1:
            logits[0] = float("nan")
        return logits

    monkeypatch.setattr(llm.model, "forward", broken)
    with pytest.raises(TacgError, match="Unusable logits"):
        run(llm, path, batch_size=6)
    assert len(read_results(path)[1]) == 5
    assert len(read_results(run(llm, path, resume=True))[1]) == 6


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import tacg
from tacg.experiments.evaluate import evaluate
from tacg.tasks import get_task

whole, path, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
llm, task, rng = tacg.load("tiny"), get_task("pocket-math"), random.Random(0)

def go_on(path=path):
    evaluate(llm, task, "tacg", n=64, batch_size=4, settings={"gen_length": 12}, out=path, resume=True)

def size():
    return path.stat().st_size if path.exists() else 0

go_on(whole)
for _ in range(kills):
    enough = size() + rng.randrange(600)  # bytes: anywhere from before the first row to the third
    child = os.fork()  # quicker than starting python anew, and as dead afterwards
    if not child:
        go_on()
        os._exit(0)
    while size() <= enough and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(len(path.read_bytes().splitlines()), flush=True)
go_on()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")
def test_killed_twenty_times_it_ends_with_the_same_file(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", textwrap.dedent(KILLER), str(tmp_path / "whole"), str(tmp_path / "killed"), "20"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1800, check=True, env=environment)
    lines = [int(word) for word in done.stdout.split()]
    assert len(lines) == 20
    assert lines[0] < 64, "killed on the way"
    assert lines == sorted(lines), "nothing that was written is lost"
    assert len(set(lines)) > 10
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "whole").read_bytes()


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    words = [TACG, "eval", "-t", "pocket-math", "-m", "tiny", "--n", "400", "--batch-size", "2"]
    words += ["--out", str(path)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        while not path.exists() or len(path.read_bytes().splitlines()) < 3:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "with --resume to continue" in told
    assert len(read_results(path)[1]) >= 2


def test_tables_in_every_form(llm: tacg.LLM, tmp_path: Path) -> None:
    files = [run(llm, tmp_path / f"{policy}_1.jsonl", policy=policy) for policy in ("confidence", "tacg")]
    first, second = rows_of(files)
    assert "base" not in first
    assert second["steps_diff"] == pytest.approx(second["steps"] - first["steps"])
    (table,) = tables([first, second])
    names, one, other = csv.reader(rows_of(files).to_csv().splitlines())
    assert float(one[names.index("accuracy_low")]) == first["accuracy_ci"][0], "not rounded, in a column of its own"
    assert float(other[names.index("steps_diff_high")]) == second["steps_diff_ci"][1]
    assert r"\begin{tabular}{lrrrrrrrr}" in table.latex()
    assert r"accuracy \%" in table.latex()
    lines = files[1].read_bytes().splitlines(keepends=True)
    begun = [tmp_path / "first.jsonl", tmp_path / "last.jsonl"]
    for path, kept in zip(begun, (lines[:4], [lines[0], *lines[-3:]]), strict=True):
        path.write_bytes(b"".join(kept))
    assert not any("base" in row for row in rows_of(begun)), "three problems each, but others"
    files[1].write_bytes(b"".join(lines[:4]))
    done = run_tacg("table", *map(str, files), "--format", "markdown", "--plot", str(tmp_path / "plane.png"))
    assert "| tacg | 3 of 6 |" in done.stdout
    assert (tmp_path / "plane.png").is_file()
    done = run_tacg("table", "nowhere.jsonl")
    assert (done.returncode, "cannot be read" in done.stderr) == (2, True)


def test_every_rows_file_of_this_repository_has_a_table(tmp_path: Path) -> None:
    """Experiments and benchmarks, whatever wrote them; no column of an interval is lost."""
    files = sorted(DOCS.glob("**/rows.jsonl"))
    assert {"arena", "scan", "results-3"} <= {file.parent.name for file in files}
    for file in files:
        rows = rows_of([file])
        shown = tables(rows)
        assert sum(len(table.lines) for table in shown) == len(rows) == len(tacg.read_rows(file))
        assert all(table.latex() and table.markdown() for table in shown)
        for row, flat in zip(rows, rows.flat(), strict=True):
            assert not any(isinstance(value, list | dict | tuple) for value in flat.values())
            for name in ("accuracy", "ms"):
                assert (f"{name}_low" in flat) == (f"{name}_high" in flat) == (name in row)


def test_rows_as_a_data_frame(llm: tacg.LLM, tmp_path: Path) -> None:
    frame = tacg.read_rows(DOCS / "arena" / "rows.jsonl").to_pandas()
    assert frame.accuracy_low.dtype == frame.accuracy_high.dtype == float
    assert ((frame.accuracy_low <= frame.accuracy) & (frame.accuracy <= frame.accuracy_high)).all()
    items = tacg.read_rows(run(llm, tmp_path / "items.jsonl"))
    assert items.header["run"]["task"] == "pocket-sudoku"
    assert len(items.to_pandas()) == items.header["run"]["n"] == len(items)
    code = "import tacg, sys; tacg.read_rows(sys.argv[1]); print(*{'pandas', 'torch'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code, str(DOCS / "arena" / "rows.jsonl")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "", "pandas is imported where it is used"


def test_a_file_of_another_kind_is_named(llm: tacg.LLM, tmp_path: Path) -> None:
    results, rows = run(llm, tmp_path / "items.jsonl"), DOCS / "arena" / "rows.jsonl"
    (tmp_path / "set.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    for read, kind in (
        (lambda: Ledger(results), "must hold rows of an experiment; it is a results file"),
        (lambda: read_results(rows), "is not a results file of `tacg eval`; it holds rows of an experiment"),
        (lambda: read_trace(results), "is not a trace: .* It is a results file"),
        (lambda: read_answers(rows, {}), "a line must be like .* This is rows of an experiment"),
        (lambda: get_task("mbpp", data=str(tmp_path / "set.jsonl")).items(), "this is problems of gsm8k"),
        (lambda: rows_of([tmp_path / "set.jsonl"]), "must hold rows or results of tacg; it holds problems of gsm8k"),
    ):
        with pytest.raises(TacgError, match=kind):
            read()
