"""The arena: every decoder takes part, reports come from rows alone, and an interruption costs one item at most."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tacg
from tacg.cli.arena import _play
from tacg.engine.request import Decode, resolve
from tacg.errors import TacgError
from tacg.experiments.arena import (
    best_points,
    cells,
    decoders,
    defaults,
    first_problems,
    gated,
    is_known,
    main_knob,
    standings,
)
from tacg.experiments.arena_cells import cells as auto_cells
from tacg.experiments.arena_cells import summary
from tacg.experiments.arena_report import best_table, frontier_table, gate_table, page_of, sections, write_arena
from tacg.experiments.evaluate import evaluate
from tacg.experiments.grid import SHAPE, Cell, Sample
from tacg.policies import Policy, get_policy, policy_names, register, registry
from tacg.policies.confidence import Confidence
from tacg.records.flat import read_rows
from tacg.records.rows import Ledger
from tacg.records.stats import aup
from tacg.shapes import misfit
from tacg.tasks import get_task
from tests.cli.test_cli import TACG

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
TIMED = ("seconds", "tokens_per_second", "processor_seconds", "tokens_per_processor_second")


@pytest.mark.parametrize("name", policy_names())
def test_every_registered_policy_declares_its_frontier(name: str) -> None:
    """Values of a knob that it has, from fast to careful, its default among them."""
    policy = get_policy(name)
    knob, values = main_knob(policy)
    assert len(set(values)) == len(values) >= 4, f"`{name}` must declare `frontier`: its main knob and values of it"
    assert values[0] == {**Decode().values(), **policy.values()}[knob]
    for value in values:
        resolve(name, {knob: value})


def test_no_decoder_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that somebody registers takes part, gated too; one that refuses the gate takes part without it."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))

    @register("newcomer")
    @dataclass(frozen=True)
    class Newcomer(Confidence):
        name = "newcomer"

    @register("loner")
    @dataclass(frozen=True)
    class Loner(Policy):
        name = "loner"

    real = registry._build

    def build(name: str) -> Policy:
        if name == "tacg+loner":
            raise TacgError("no.")
        return real(name)

    monkeypatch.setattr(registry, "_build", build)
    specs = decoders()
    assert {*policy_names(), "tacg+newcomer", "tacg+klass"} <= {*specs}
    assert "tacg+loner" not in specs
    assert main_knob(get_policy("loner")) == ("", (None,)), "it runs at its defaults"
    assert [gated(name) for name in ("confidence", "tacg", "tacg-released", "loner")] == ["tacg", None, None, None]
    assert len(specs) == len(set(specs))


def test_an_interrupted_arena_is_of_use() -> None:
    """Every decoder at its defaults, then nearby values, then the rest; TACG over others comes last."""
    tasks = [get_task("pocket-math"), get_task("pocket-sudoku")]
    plan = [(cell.policy, dict(cell.settings)) for cell in cells(tasks[:1], ["confidence", "eb", "tacg+eb"])]
    assert plan[:4] == [
        ("confidence", {"threshold": 0.9}), ("eb", {"bound": 0.01}), ("confidence", {"threshold": 0.8}),
        ("eb", {"bound": 0.03}),
    ]  # fmt: skip
    assert [spec for spec, _ in plan[-6:]] == ["tacg+eb"] * 6
    assert plan[-6][1] == {"bound": 0.01}
    assert Counter(cell.task.name for cell in cells(tasks, ["eb"])) == {task.name: 6 for task in tasks}
    many = [cell.settings["steps"] for cell in cells([get_task("pocket-sudoku", puzzles=9)], ["schedule"])]
    assert many == [None, 48, 32, 24, 16], "8 steps are too few for nine puzzles, a block each"


def test_rows_count_what_was_computed(llm: tacg.LLM) -> None:
    """A branch that looks ahead is a forward, and its positions are computed ones."""
    task, settings = get_task("pocket-sudoku"), {"gen_length": 12, "block_length": 12}
    outputs = llm.generate([each.asked for each in task.problems("test", 3)], "lookum", early_stop=False, **settings)
    row = evaluate(llm, task, "lookum", n=3, settings=dict(settings)).row
    assert row["positions"] == sum(output.positions for output in outputs)
    assert row["forwards"] == sum(output.forwards for output in outputs) > 3 * row["steps"]
    assert row["tokens_per_position"] == pytest.approx(36 / row["positions"])
    assert row["auxiliary_forwards"] == 0


def made(
    policy: str, accuracy: float, steps: int, positions: int | None = None, /, n: int = 100, **settings: Any
) -> Any:
    """A row as the grid writes it, the same for every problem, so that tables can be worked out by hand."""
    hits = round(n * accuracy)
    positions = 100 * steps if positions is None else positions
    return {
        "task": "made", "model": "m", "weights": "w", "dtype": "float32", "seed": 0, "split": "test", "policy": policy,
        "n": n, "accuracy": accuracy, "accuracy_ci": [accuracy, accuracy], "steps": float(steps), "settings": settings,
        "tpf": 96 / steps, "tpf_ratio": 96 / steps, "forwards": n * steps, "auxiliary_forwards": 0, "score": accuracy,
        "positions": n * positions, "tokens_per_position": 96 / positions, "seconds": 1.0, "tokens_per_second": 10.0,
        "correct": "1" * hits + "0" * (n - hits), "item_steps": [steps] * n, "item_positions": [positions] * n,
    }  # fmt: skip


ROWS = [
    made("confidence(threshold=0.5)", 0.60, 10, threshold=0.5),
    made("confidence", 0.80, 20, threshold=0.9),
    made("confidence(threshold=0.99)", 0.90, 40, threshold=0.99),
    made("schedule", 0.90, 96, steps=None),
    made("lookum", 0.80, 10, 4000, bypass=0.9),  # half the rounds of confidence, twice its positions
    made("tacg", 0.89, 24, threshold=0.9),
    made("tacg(threshold=0.5)", 0.50, 10, threshold=0.5),
]


def test_what_rows_say() -> None:
    rows = standings([made("confidence", 0.1, 5, n=10, threshold=0.9), *ROWS, {"policy": "of another experiment"}])
    assert len(rows) == len(ROWS), "fewer problems of the same point are not shown beside more"
    by_name = {row["name"]: row for row in rows}
    careful, gate = by_name["schedule steps=none"], by_name["tacg threshold=0.9"]
    assert "base" not in careful
    assert (gate["base"], gate["over"], gate["default"]) == ("schedule steps=none", "confidence", True)
    assert gate["accuracy_diff"] == pytest.approx(-0.01)
    curve = [(96 / 96, 90.0), (96 / 24, 89.0), (96 / 10, 50.0)]
    assert gate["aup"] == pytest.approx(aup(curve, best=90.0)), "the slowest point is that of one token per step"
    assert gate["saved"] == pytest.approx(1 - 24 / 38), "at 0.89 the frontier of confidence needs 38 steps"
    assert [(row["spec"], row["value"]) for row in best_points(rows, 0.02)] == [
        ("tacg", 0.9), ("confidence", 0.99), ("schedule", None), ("lookum", 0.9),
    ]  # fmt: skip
    ahead = next(line for line in frontier_table(rows).lines if line[0] == "lookum")
    assert ahead[2].startswith("+50.0 "), "half the rounds at equal accuracy"
    assert ahead[4].startswith("-100.0 "), "for twice the positions"
    (line,) = gate_table(rows).lines
    assert line[-1] == "1 above, 1 below, of 2"
    newer = [row | {"seed": 1} for row in ROWS[:2]]
    assert {row["seed"] for row in standings([*ROWS, *newer])} == {1}, "problems of two seeds cannot be compared"


def test_areas_have_intervals_where_forwards_are_known() -> None:
    unknown = made("lookum", 0.80, 10, bypass=0.9) | {"forwards": 4000}
    assert all("ahead" not in row for row in standings([*ROWS, unknown])), "which problem took how many?"
    rows = standings([row for row in ROWS if row["policy"] != "lookum"])
    best, gate = (next(row for row in rows if row["spec"] == spec) for spec in ("confidence", "tacg"))
    assert best["ahead"] == pytest.approx(best["aup"] - gate["aup"])
    assert gate["ahead"] == pytest.approx(-best["ahead"]), "behind the best by as much"
    assert gate["ahead_ci"][0] <= gate["ahead"] <= gate["ahead_ci"][1]
    assert "ahead" in best_table(rows).columns


def test_auto_is_compared_in_every_arena() -> None:
    """With the best other decoder, and with `confidence` at equal accuracy, where it was not chosen."""
    mine = [made("auto", 0.85, 10, bound=0.05), made("auto(bound=0.2)", 0.70, 8, bound=0.2)]
    arena = standings([*(row for row in ROWS if row["policy"] != "lookum"), *mine])
    chosen = [row | {"task": "pocket-math"} for row in arena]
    (cell, other) = auto_cells([*arena, *chosen])
    assert (cell["rival"], cell["decoders"], cell["unseen"], other["unseen"]) == ("tacg", 4, True, False)
    assert cell["ahead"] == pytest.approx(cell["aup"] - cell["rival_aup"])
    assert cell["saved"] == pytest.approx(((1 - 10 / 30) + (1 - 8 / 15)) / 2), "the mean over both of its points"
    text = summary([cell, other])
    assert "`auto` was not chosen on 1 of these. There its AUP is the best in 1, " in text
    assert "pocket-math (chosen on)" in text
    behind = cell | {"ahead": -9.0, "ahead_ci": [-12.0, -1.0]}
    assert "There its AUP is the best in 1, and the best or within its interval of the best in 1. " in summary(
        [cell, behind]
    )
    assert "No arena yet" in summary([other])
    assert not auto_cells(row for row in arena if row["spec"] != "confidence")


def test_points_are_compared_on_the_problems_that_all_have_seen() -> None:
    """Defaults with more problems are cut to what the curves have; a row that cannot be cut stays out."""
    whole = made("schedule", 0.90, 96, n=200, steps=None) | {"correct": "1" * 90 + "0" * 20 + "1" * 90}
    ahead = made("lookum", 0.80, 10, n=200, bypass=0.9) | {"forwards": 9000, "tpf_ratio": 96 * 200 / 9000}
    rows = standings([*ROWS[:3], whole, ahead])
    assert {row["n"] for row in rows} == {100}
    assert "lookum" not in {row["spec"] for row in rows}, "which of its forwards were of the first problems?"
    careful = next(row for row in rows if row["spec"] == "schedule")
    assert (careful["accuracy"], careful["steps"], careful["forwards"]) == (0.9, 96, 9600)
    assert (careful["tpf"], careful["tokens_per_position"]) == pytest.approx((1.0, 0.01))
    ahead |= {"item_forwards": [45] * 200}
    cut = first_problems(ahead, 50)
    assert cut is not None
    assert (cut["forwards"], cut["tpf"]) == (50 * 45, pytest.approx(96 / 45))
    plain = defaults([*ROWS[:3], whole, ahead])
    assert [(row["spec"], row["n"], "base" in row) for row in plain] == [
            ("schedule", 200, False), ("confidence", 100, False), ("lookum", 200, True),
    ]  # fmt: skip


def test_problems_decoded_before_are_not_decoded_again(llm: tacg.LLM, tmp_path: Path) -> None:
    cell = Cell(get_task("pocket-sudoku"), "confidence", {"gen_length": 12})
    _play(llm, [cell], Sample(3), tmp_path)
    ledger = Ledger(tmp_path / "rows.jsonl")
    known = [is_known(llm, cell, sample, ledger) for sample in (Sample(2), Sample(4), Sample(2, seed=1))]
    assert known == [True, False, False]
    (row,) = ledger.rows.values()
    fewer = evaluate(llm, cell.task, "confidence", n=2, settings={"gen_length": 12}).row
    cut = first_problems(row, 2)
    assert cut is not None
    for name in ("accuracy", "accuracy_ci", "steps", "tpf", "forwards", "positions", "tokens_per_position"):
        assert cut[name] == pytest.approx(fewer[name]), name


def run(out: Path, *more: str, n: int = 3) -> subprocess.Popen[str]:
    words = ["arena", "-m", "tiny", "-t", "pocket-sudoku", "-p", "confidence"]
    words += ["--n", str(n), "--batch-size", "1", "--out", str(out), *more]
    return subprocess.Popen([TACG, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def results(out: Path) -> list[dict[str, Any]]:
    """The rows without times, in an order that does not depend on which came first."""
    rows = [{key: value for key, value in row.items() if key not in TIMED} for row in read_rows(out / "rows.jsonl")]
    return sorted(rows, key=lambda row: str(row["key"]))


def wait_for(what: Any) -> None:
    end = time.monotonic() + 300
    while not what():
        assert time.monotonic() < end, "hangs"
        time.sleep(0.05)


def items_begun(out: Path) -> int:
    return sum(file.read_bytes().count(b"\n") - 1 for file in (out / "begun").glob("*.jsonl") if file.stat().st_size)


def test_interrupted_killed_and_in_processes_it_comes_to_the_same(tmp_path: Path) -> None:
    whole, halted = tmp_path / "whole", tmp_path / "halted"
    told, said = run(whole, "--jobs", "2", "--json").communicate(timeout=600)
    assert json.loads(told.splitlines()[-1])["rows"], said
    assert len(results(whole)) == 7, "six values of confidence, and one row of what it is measured against"
    assert not list((whole / "begun").glob("*"))

    child = run(halted)
    wait_for(lambda: (halted / "rows.jsonl").is_file() and items_begun(halted) >= 1)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=300)
    assert child.returncode == 130
    assert (halted / "page.html").is_file(), "what is there is drawn"
    kept = items_begun(halted), len(results(halted))
    child = run(halted)
    wait_for(lambda: len(read_rows(halted / "rows.jsonl")) >= kept[1] + 1)
    child.kill()
    child.communicate(timeout=300)
    told, said = run(halted).communicate(timeout=600)
    assert results(halted) == results(whole), said

    report, page = tmp_path / "halted.md", halted / "page.html"
    before = report.read_text(), page.read_text()
    told, said = run(halted, "--redraw").communicate(timeout=300)
    assert "which decoder?" in told, said
    assert (report.read_text(), page.read_text()) == before, "from the same rows the same report"
    for row in results(halted):
        assert f"in {row['steps']:.1f}" in before[0]


def test_a_decoder_that_cannot_run_is_left_out_and_said_to_be(
    llm: tacg.LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = get_task("pocket-sudoku")
    wrong = Cell(task, "lookum", {"memory": "hidden"})
    _play(llm, [wrong, Cell(task, "confidence", {"gen_length": 12})], Sample(1), tmp_path)
    assert "left out: lookum: `memory` must be" in capsys.readouterr().err
    assert [row["policy"] for row in read_rows(tmp_path / "rows.jsonl")] == ["confidence"]
    with pytest.raises(TacgError, match="`memory` must be"):
        _play(llm, [wrong], Sample(1), tmp_path / "none")


def test_the_report_has_a_section_for_each_task(tmp_path: Path) -> None:
    both = [*ROWS, *(row | {"task": "other"} for row in ROWS)]
    parts = sections(standings(both), defaults(both))
    assert [part.title for part in parts] == ["made", "other"]
    assert all(len(part.tables) == 5 for part in parts)
    write_arena(standings(both), defaults(both), tmp_path / "arena.md", tmp_path / "page.html")
    text = " ".join((tmp_path / "arena.md").read_text(encoding="utf-8").split())
    assert text.count("at most 2 points below") == 1, "what tables mean is said once"


@pytest.mark.skipif(BROWSER is None, reason="no browser")
def test_the_page_sorts_and_filters_and_loads_nothing(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    rows = standings([*ROWS, *(row | {"task": "</script><b>other"} for row in ROWS[:2])])
    (tmp_path / "page.html").write_text(page_of(rows))
    with playwright.sync_playwright() as play:
        running = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        page = running.new_page()
        trouble: list[str] = []
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda asked: trouble.append(asked.url) if not asked.url.startswith("file:") else None)
        page.goto((tmp_path / "page.html").as_uri())
        page.select_option("#task", "made")
        page.select_option("#reach", "100")
        lines, circles = page.locator("#body tr"), page.locator("#chart circle")
        assert lines.count() == circles.count() == len(ROWS)

        def column(number: int) -> list[float]:
            return [float(text.split()[0]) for text in page.locator(f"#body td:nth-child({number})").all_inner_texts()]

        for title, down in (("steps", True), ("accuracy %", True), ("steps", False)):
            page.get_by_role("button", name=title, exact=True).click()
            values = column({"steps": 5, "accuracy %": 3}[title])
            assert values == sorted(values, reverse=down)
        page.locator("#body tr", has_text="threshold=0.99").click()
        delta = page.locator("#body tr", has_text=re.compile("^confidence.*threshold=0.9[^9]")).locator("td").nth(3)
        assert delta.inner_text() == "-10.0 ± 5.9", "ten problems of a hundred lost, none won"
        page.select_option("#gates", "gated")
        assert lines.count() == circles.count() == 2
        page.select_option("#gates", "all")
        page.fill("#words", "look sched")
        assert lines.count() == circles.count() == 2
        page.fill("#words", "")
        page.select_option("#reach", "10")
        assert lines.count() == 5, "nothing more than ten points below the best"
        page.select_option("#points", "front")
        assert lines.count() == 3, "tacg, and both that are better than it"
        page.select_option("#task", "</script><b>other")
        page.select_option("#points", "all")
        page.select_option("#reach", "100")
        assert lines.count() == 2
        assert not trouble
        running.close()


def test_a_step_may_re_mask_more_than_it_commits() -> None:
    """On average over problems; such rows can be read again."""
    assert not misfit([1.5, -0.01], SHAPE["commits_by_step"])
