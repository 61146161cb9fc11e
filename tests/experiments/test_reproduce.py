"""The plan of the paper's tables: its numbers are the paper's, and it runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tacg import TacgError
from tacg.engine.request import resolve
from tacg.experiments.evaluate import settings_of
from tacg.experiments.reproduce import NAMES, Stage, paper, plan, runs_of, tables
from tests.cli.test_cli import ROOT, tacg

SOURCE = ROOT.parent / "shared/paper/tacg.tex"
needs_paper = pytest.mark.skipif(not SOURCE.is_file(), reason="the paper's source is not here")


def numbers(label: str, end: str) -> list[list[float]]:
    """The plain numbers of each line of a table, without the differences in colour; lines of d3LLM are left out."""
    text = SOURCE.read_text(encoding="utf-8").partition(rf"\label{{tab:{label}}}")[2].partition(end)[0]
    text = re.sub(r"\{\\color\{\w+\}\s*\([^)]*\)\}|\\textcolor\{[^}]*\}\{[^}]*\}", "", text)
    text = re.sub(r"\\textbf\{([^}]*)\}", r"\1", text)
    lines = [line for line in text.split(r"\\") if "d3LLM" not in line]
    found = [[float(cell) for cell in line.split("&") if re.fullmatch(r"\s*\d+\.\d+\s*", cell)] for line in lines]
    return [line for line in found if line]


def published(name: str, *keys: str) -> list[list[float]]:
    return [[getattr(line, key) for key in keys] for line in runs_of(name)]


@needs_paper
def test_table_1_and_3_are_the_papers() -> None:
    assert published("table1", "accuracy", "steps", "tpf") == numbers("main_llada_dream", r"\end{table*}")
    assert published("table3", "accuracy", "steps", "tpf") == numbers("component_ablation_unified", r"\end{table*}")


@needs_paper
def test_table_2_is_the_papers() -> None:
    ours = published("table2", "accuracy", "tpf")
    for number, (base, gated) in enumerate(_pairs(numbers("llada2mini", r"\end{minipage}"))):
        assert [*ours[4 * number], *ours[4 * number + 2]] == base
        assert [*ours[4 * number + 1], *ours[4 * number + 3]] == gated
    assert [line.gen_length for line in runs_of("table2")] == [1024, 1024, 2048, 2048] * 4


def _pairs(lines: list[list[float]]) -> list[tuple[list[float], list[float]]]:
    return list(zip(lines[::2], lines[1::2], strict=True))


@needs_paper
def test_table_4_is_the_papers() -> None:
    ours = published("table4", "accuracy", "steps", "tpf")
    theirs = numbers("llada_confidence_gen512", r"\end{table*}")
    assert ours == [line[start::2] for line in theirs for start in (0, 1)]


@needs_paper
def test_table_5_is_table_1_again() -> None:
    text = SOURCE.read_text(encoding="utf-8").partition(r"\label{tab:latency_conf_klass_separate}")[2]
    text = re.sub(r"\\multirow.*|\\cmidrule.*", "", text.partition(r"\end{table}")[0])
    theirs = [[float(x) for x in re.findall(r"[-+]?\d+\.\d+", line)] for line in text.splitlines()]
    steps = {(line.model, line.task, line.policy): line.steps for line in runs_of("table5")}
    ours = []
    for task in ("humaneval", "mbpp", "math500", "gsm8k"):
        for base, gated in (("confidence", "tacg"), ("klass", "tacg+klass")):
            line: list[float] = []
            for model in ("llada", "dream"):
                before, after = steps[model, task, base], steps[model, task, gated]
                assert before is not None
                assert after is not None
                line += [before, after, 100 * (after - before) / before]
            ours.append(line)
    for mine, line in zip(ours, [line for line in theirs if line], strict=True):
        assert line == pytest.approx(mine, abs=0.006)


@pytest.mark.parametrize("name", NAMES)
def test_every_run_has_its_published_settings(name: str) -> None:
    for stage in (Stage(), Stage(released=True), Stage("tiny"), Stage("tiny", released=True)):
        for line in runs_of(name):
            if stage.released and (line.model, line.policy) == ("llada2-mini", "tacg"):
                with pytest.raises(TacgError, match="was not released"):
                    stage.policy(line)
                continue
            spec = stage.policy(line)
            policy, decode = resolve(spec, settings_of(stage.task(line), spec, stage.settings(line)))
            assert line.gen_length in (None, decode.gen_length) or stage.rehearsal
            if not stage.rehearsal:
                assert decode.block_length == {"llada": 64, "dream": 256, "llada2-mini": 32}[line.model]
            if line.part == "HG only":
                assert policy.values()["k_extra"] == 0


def test_the_plan_counts_runs_once(tmp_path: Path) -> None:
    asked = Stage(knobs={"mbpp": {"subset": "all"}})
    line = next(each for each in runs_of("table3") if each.task == "mbpp")
    assert (asked.task(line).subset, Stage().task(line).subset) == ("all", "test"), "a knob that was given wins"
    assert "subset=all" in asked.file(line)
    stage = Stage()
    assert plan("table1", stage, tmp_path).lines[-1][:3] == ("32 runs", "", "17,920")
    assert plan("table5", stage, tmp_path) == plan("table1", stage, tmp_path).__class__(
        "table5", plan("table1", stage, tmp_path).columns, plan("table1", stage, tmp_path).lines
    )
    shared = {stage.file(line) for line in runs_of("table3")} & {stage.file(line) for line in runs_of("table1")}
    assert len(shared) == 6
    first = runs_of("table1")[0]
    assert stage.forwards(first) == round(164 * 52.28)
    assert stage.forwards(runs_of("figures")[-1]) == round(164 * 45.71)
    assert stage.file(runs_of("table4")[1]) == "llada.humaneval.tacg.gen_length=512.jsonl"
    assert (
        Stage("tiny").settings(runs_of("table4")[0])["gen_length"] == 2 * Stage("tiny").task(first).decode["gen_length"]
    )


def test_differences_are_in_problems() -> None:
    line = runs_of("table1")[0]
    row = {
        "line": line, "task": "humaneval", "n": 164, "accuracy": 66 / 164, "accuracy_ci": [0.3, 0.5], "steps": 50.0,
        "tpf": 6.5, "tpf_ratio": 5.1, "whole": True, "rehearsal": False,
    }  # fmt: skip
    (table,) = tables("table1", [row])
    assert table.lines[0][5:] == ("37.20", "+5", "50.00", "52.28", "6.50", "6.45"), "61 of 164 were published"
    (table,) = tables("table1", [row | {"accuracy_strict": 61 / 164}])
    assert table.lines[0][6] == "+0", "like with like: the released extraction"
    (table,) = tables("table1", [row | {"rehearsal": True}])
    assert table.lines[0][6] == ""
    (table,) = tables("table1", [row | {"line": runs_of("table1")[16]}])
    assert table.lines[0][9] == "5.10", "Dream's TPF is total over total"
    assert set(paper()["rehearsal"]) == {"humaneval", "mbpp", "math500", "gsm8k"}


def test_a_rehearsal_runs_and_goes_on(tmp_path: Path) -> None:
    words = ["reproduce", "table3", "--model", "tiny", "--n", "1", "--out", str(tmp_path), "--json"]
    done = tacg(*words)
    rows = json.loads(done.stdout.splitlines()[-1])["table3"]
    assert [row["paper"]["accuracy"] for row in rows] == [line.accuracy for line in runs_of("table3")]
    assert len(list(tmp_path.glob("*.jsonl"))) == 12
    assert (tmp_path / "table3/page.html").is_file()
    before = {file: file.read_bytes() for file in tmp_path.glob("*.jsonl")}
    next(iter(before)).unlink()
    done = tacg(*words)
    assert {file: file.read_bytes() for file in tmp_path.glob("*.jsonl")} == before
    again = json.loads(done.stdout.splitlines()[-1])["table3"]
    assert sum(row["tokens_per_second"] > 0 for row in again) == 1, "only what was missing was decoded"


def test_a_dry_run_and_mistakes() -> None:
    done = tacg("reproduce", "table4", "--dry-run", "--model", "tiny", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout.splitlines()[-1])["table4"]) == 9
    for words, message in (
        (["table9"], "Did you mean 'table"),
        (["table1", "--model", "lada=x"], "Did you mean 'llada'?"),
        (["table1", "--model", "nowhere"], "`--model` takes NAME=DIRECTORY"),
        (["table1", "--data", "x"], "Write --data TASK=FILE"),
    ):
        done = tacg("reproduce", *words)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
