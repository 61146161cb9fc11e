"""The law: controls do what they say, cells are made of rows alone, and rules say of unseen cells what they should."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacg
from tacg.cli.diagnose import main as diagnose
from tacg.cli.law import main as law
from tacg.errors import TacgError
from tacg.experiments.controls import CarefulStart, HeldAtRandom, Outspoken
from tacg.experiments.diagnose import FEATURES, FIELDS, TARGETS, features
from tacg.experiments.frontier import against_frontier, areas, mean_gain
from tacg.experiments.grid import Sample
from tacg.experiments.law import (
    AUTO,
    BASES,
    CURVES,
    RANDOM,
    STARTS,
    cells_of,
    gain_of,
    held_back,
    measure,
    methods,
    tasks_for,
)
from tacg.experiments.law_fit import ENOUGH, in_words, law_of, predict, read_law, verdict, write_law
from tacg.experiments.law_report import adds, pictured, said, with_brief, write_report
from tacg.policies import Policy, get_policy
from tacg.policies.confidence import Confidence
from tacg.records.rows import Ledger
from tacg.records.stats import aup, spearman, spearman_interval
from tacg.tasks import get_task
from tacg.types import Signals
from tests.engine.test_compile import assert_alike, parts, step_of, whole_step

HOME = Path(__file__).parents[2]
CONTROLS: tuple[Policy, ...] = (
    CarefulStart(), CarefulStart(by="share", first=1.0), HeldAtRandom(base=Confidence(threshold=0.2), rate=0.5),
    HeldAtRandom(base=get_policy("eb")), get_policy("tacg").replace(k_extra=0),
)  # fmt: skip


def seen(confidence: list[float], step: int, masked: list[bool] | None = None, **more: Any) -> Signals:
    sure = torch.tensor([confidence])
    mask = torch.ones_like(sure, dtype=torch.bool) if masked is None else torch.tensor([masked])
    return Signals(
        observed=mask, eligible=mask, first=mask & (step == 0), token=torch.zeros_like(sure, dtype=torch.int64),
        confidence=sure, step=torch.tensor([step]), steps=torch.tensor([8]), measured=more,
    )  # fmt: skip


def committed(policy: Policy, *boards: Signals) -> list[list[bool]]:
    state, found = policy.start(1, boards[0].confidence.shape[1], torch.device("cpu")), []
    for signals in boards:
        decision, state = policy.decide(signals, state)
        found.append(decision.base[0].tolist())
    return found


def test_a_careful_start_by_steps() -> None:
    sure = [0.6, 0.94, 0.96, 0.4]
    first, second, third = committed(CarefulStart(threshold=0.5), *(seen(sure, step) for step in range(3)))
    assert first == second == [False, False, True, False]
    assert third == [True, True, True, False]


def test_a_careful_start_by_share_masked() -> None:
    """From 1 with everything masked to 0.5 in the end: 0.75 when half is left. The next block begins anew."""
    policy, sure = CarefulStart(threshold=0.5, first=1.0, by="share"), [0.8, 0.8, 0.7, 0.7]
    boards = seen(sure, 0), seen(sure, 1, [True, False, True, False]), seen(sure, 0, [False, True, True, False])
    assert committed(policy, *boards) == [[False] * 4, [True, False, False, False], [False] * 4]


def test_held_at_random_spares_what_escapes_and_keeps_its_rate() -> None:
    noise = torch.tensor([[0.1, 0.6, 0.1, 0.1]])
    policy = HeldAtRandom(base=Confidence(threshold=0.5), rate=0.5)
    assert committed(policy, seen([0.8, 0.8, 0.96, 0.3], 0, noise=noise)) == [[False, True, True, False]]
    many = seen([0.8] * 4000, 0, noise=torch.rand(1, 4000, generator=torch.Generator().manual_seed(0)))
    assert np.mean(committed(policy.replace(rate=0.3), many)) == pytest.approx(0.7, abs=0.03)
    assert all(committed(policy.replace(rate=0.0), many)[0])


@pytest.mark.parametrize("policy", [*CONTROLS, Outspoken(base=Confidence())], ids=lambda policy: policy.label)
def test_controls_are_one_graph(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    boards, answer, signals, state = step_of(policy, monkeypatch)
    given = parts(signals)
    step = whole_step(policy, list(given))
    plain = step(boards, answer, list(given.values()), dict(signals.measured), state)
    torch.compiler.reset()
    graph = torch.compile(step, fullgraph=True, backend="eager")
    found = graph(boards, answer, list(given.values()), dict(signals.measured), state)
    assert_alike(found[3], plain[3], answer.shape[1])


def test_told_changes_nothing_and_tells_what_the_gate_hides(llm: tacg.LLM) -> None:
    gate = get_policy("tacg", k_extra=0, threshold=0.01)
    plain = llm.generate("Hello", gate, gen_length=16)
    told = llm.generate("Hello", gate.__class__(base=Outspoken(base=gate.base), gate=gate.gate), gen_length=16)
    assert (told.tokens, told.steps) == (plain.tokens, plain.steps)
    row = held_back(llm, get_task("pocket-sudoku"), Sample(2), 0.001, ledger := Ledger())
    assert 0 < row["held"] < row["of"]
    assert row["rate"] == row["held"] / row["of"]
    assert held_back(llm, get_task("pocket-sudoku"), Sample(2), 0.001, ledger) == row


def test_controls_are_in_no_table() -> None:
    assert not {policy.name for policy in CONTROLS} - {"tacg"} & {*tacg.policy_names()}


def test_methods_are_told_apart_by_their_labels() -> None:
    known = methods()
    assert len(known) == sum(len(values) for _, values in CURVES.values()) + 2 * 2 * 3 + 2 * 2, "no two alike"
    gate = get_policy("tacg", k_extra=0, threshold=0.5)
    assert known[gate.label] == {
        "method": "HG only",
        "base": "confidence",
        "value": 0.5,
    }


def test_every_model_has_its_tasks() -> None:
    assert [task.name for task in tasks_for("pocket")] == ["pocket-code", "pocket-math", "pocket-sudoku"]
    assert {task.name.split("-")[0] for task in tasks_for("rxnfp")} == {"reactions"}
    assert {task.name.split("-")[0] for task in tasks_for("antiberty")} == {"antibodies"}


# --- features --------------------------------------------------------------------------------------------------------


def test_features_are_what_they_say() -> None:
    """Four proposals early at 0.9, half of them right; four late at 0.9, all right; one of six was changed."""
    field = {name: np.zeros(8) for name in FIELDS}
    field["share"] = np.array([1.0] * 4 + [0.1] * 4)
    field["confidence"] = np.full(8, 0.9)
    field["final"] = np.array([1, 1, 0, 0, 1, 1, 1, 1])
    field["reference"] = np.full(8, np.nan)
    field["first"] = np.array([1, 1, 0, 0, 0, 0, 0, 0])
    field["streak"] = np.array([1, 1, 1, 2, 3, 4, 5, 6])
    data = np.stack([field[name] for name in FIELDS], axis=1).astype(float)
    auc = {target: {"streak": [0.7, 0.6, 0.8], "support": None} for target in TARGETS}
    found = features(data, auc, 4.0, "final")
    assert found == pytest.approx({
        "steps": 4.0, "flips": 1 / 6, "early": 0.4, "fall": 0.5, "streak": 0.7, "support": None,
    })  # fmt: skip
    assert found.keys() == FEATURES.keys()
    assert features(data, auc, 4.0, "reference")["early"] is None, "nobody knows what is right"


def test_rank_correlation() -> None:
    assert spearman([1, 2, 3, 4], [1, 4, 9, 16]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [3, 2, 1, 0]) == pytest.approx(-1)
    assert spearman([1, 1, 2, 2], [1, 2, 1, 2]) == pytest.approx(0)
    assert np.isnan(spearman([1, 1, 1], [1, 2, 3]))
    low, high = spearman_interval(range(20), [(7 * x) % 20 for x in range(20)])
    assert -1 < low < 0 < high < 1


def test_the_gain_of_a_curve_is_the_mean_of_its_best_points() -> None:
    def row(right: str, steps: int) -> dict[str, Any]:
        return {"correct": right, "item_steps": [steps] * len(right), "accuracy": right.count("1") / len(right)}

    base = [row("1000", 2), row("1100", 4), row("1111", 8)]
    points = [row("1100", 2), row("1110", 8)]
    alone = [against_frontier(point, base) for point in points]
    both = mean_gain(points, base)
    for goal in ("saved", "gained"):
        assert both[goal] == pytest.approx(np.mean([each[goal] for each in alone]))
        assert mean_gain([*points, row("1000", 9)], base)[goal] == both[goal], "nobody would use that one"
    assert (alone[0]["saved"], alone[0]["gained"]) == (0.5, 0.25)
    assert (alone[1]["saved"], alone[1]["gained"]) == (pytest.approx(1 - 8 / 6), -0.25)


def test_gains_by_score_and_areas() -> None:
    def row(right: str, steps: int) -> dict[str, Any]:
        scores = [0.5 + int(mark) / 2 for mark in right]
        counts = {"item_steps": [steps] * 4, "item_forwards": [steps] * 4, "forwards": 4 * steps, "n": 4}
        return counts | {"correct": right, "item_scores": scores, "tpf_ratio": 32 / steps}

    base, faster = [row("1100", 4), row("1111", 8)], [row("1110", 4)]
    assert mean_gain(faster, base)["gained"] == 0.25
    assert mean_gain(faster, base, by_score=True)["gained"] == 0.125, "half of an answer was right anyway"
    found = areas({"base": base, "faster": [*faster, base[1]]}, careful=base[1])
    assert {name: len(area) for name, area in found.items()} == {"base": 501, "faster": 501}
    assert found["base"][0] == pytest.approx(aup([(4, 100), (8, 50)], best=100))
    assert found["faster"][0] == pytest.approx(aup([(4, 100), (8, 75)], best=100))
    assert np.all(found["faster"] >= found["base"]), "on every resample"


# --- the law ---------------------------------------------------------------------------------------------------------


def cell(number: int, gain: Any, noise: float = 0.0) -> dict[str, Any]:
    """A cell of four models whose gain over every base is a function of `early`; all else is noise."""
    rng = np.random.default_rng(number)
    numbers = {name: float(rng.normal()) for name in FEATURES} | {"steps": float(rng.uniform(3, 12))}
    value = gain(numbers) + noise * float(rng.normal())
    won = {"saved": 2 * value, "saved_ci": [0.0, 0.0], "gained": value, "gained_ci": [value - 0.01, value + 0.01]}
    won |= {f"accuracy_{name}": amount for name, amount in won.items()}
    which = [
        (method, base, "frontier") for base in BASES for method in ("HG only", "TILG only", "TACG", *STARTS, RANDOM)
    ] + [(part, BASES[0], against) for part in ("HG only", "TACG") for against in ("careful starts", RANDOM)]
    which += [(AUTO, BASES[0], against) for against in ("frontier", BASES[1])]
    gains = [dict(zip(("method", "base", "against"), each, strict=True)) | won for each in which]
    points = [
        {"method": method, "base": base, "value": place, "gained": value + place}
        for method in ("HG only", "TILG only", "TACG", AUTO) for base in BASES for place in (0.5, 0.8)
    ]  # fmt: skip
    return {
        "model": f"m{number % 4}", "task": f"t{number // 4}", "split": "test", "seed": 0, "n": 9, "accuracy": 0.5,
        "score": 0.8, "aup": {**dict.fromkeys(BASES, 90.0), AUTO: 100.0}, "ahead": 10.0, "ahead_ci": [-5.0, 25.0],
        "features": numbers, "reference": numbers, "gains": gains, "points": points, "rates": {"0.5": 0.25},
        "seconds": 1.0, "decodes": 1, "weights": "", "dtype": "float32",
    }  # fmt: skip


def test_the_law_finds_the_feature_that_matters_and_its_sign_holds() -> None:
    cells = [cell(number, lambda x: 0.02 * x["early"], 0.002) for number in range(24)]
    law = law_of(cells)
    rule = law["rules"][0]
    assert rule["saved"]["features"] == ["early"], "one is enough"
    assert rule["saved"]["explained"] > 0.9
    assert all(rule["held_out"][name]["right"] >= 21 for name in ("halves", "models"))
    assert rule["settings"]["threshold"] == 0.8, "the value with the largest gain"
    best = max(law["correlations"], key=lambda each: each["rho"])
    assert (best["feature"], best["rho"] > 0.9) == ("early", True)

    likely = verdict({**cells[0]["features"], "early": 1.5}, law)
    assert [(each["base"], each["policy"]) for each in likely[1:]] == [("eb", "tacg+eb"), ("confidence", AUTO)]
    assert (likely[0]["gained"], likely[0]["saved"]) == pytest.approx((0.03, 0.06), abs=0.01)
    assert "should save" in in_words(likely, law)[0]
    assert "Auto instead of confidence should save" in in_words(likely, law)[-2]
    tested = law["verdicts"]["halves"]
    assert (tested["right"] >= 63, tested["of"]) == (True, 3 * 24), "three gates of each cell"
    assert f"right in {tested['right']} of 72 with halves held out" in in_words(likely, law)[-1]
    assert "should cost" in in_words(verdict({**cells[0]["features"], "early": -1.5}, law), law)[0]
    assert "No verdict: confidence finishes" in in_words(verdict({**cells[0]["features"], "steps": 1.6}, law), law)[0]
    far = verdict({**cells[0]["features"], "early": 99.0}, law)
    assert "early" in far[0]["unlike"]
    assert "Outside the range of all cells" in in_words(far, law)[0]


def test_noise_is_no_law() -> None:
    cells = [cell(number, lambda _: 0.0, 0.02) for number in range(24)]
    rule = law_of(cells)["rules"][0]
    assert rule["saved"]["features"] == [], "what fits by chance is not believed"
    assert rule["held_out"]["halves"]["right"] <= 18
    middle = dict.fromkeys(FEATURES, 0.0) | {"steps": 6.0}
    assert "may " in in_words(verdict(middle, law_of(cells)), law_of(cells))[0]


def test_too_few_cells_are_said_to_be() -> None:
    cells = [cell(number, lambda x: x["early"]) for number in range(ENOUGH)]
    cells[0]["score"] = 0.01  # nothing is right there, so nothing can be gained
    cells[1]["features"]["steps"] = 1.6  # nor can anything be saved there
    law = law_of(cells)
    assert (law["cells"], law["unanswered"], law["short"], law["rules"]) == (ENOUGH - 2, 1, 1, [])
    assert f"and {ENOUGH - 2} are there. 1 more" in said(law)
    assert "No verdict" in in_words(verdict({}, law), law)[0]
    assert adds([]) == "No cell is finished yet."
    assert "is open" in adds(cells[:2])
    assert f"too few cells, 2 of {ENOUGH}" in adds(cells[:2])


def test_a_law_is_read_back_and_a_wrong_one_refused(tmp_path: Path) -> None:
    law = law_of([cell(number, lambda x: 0.02 * x["early"]) for number in range(16)])
    again = read_law(write_law(law, tmp_path / "law.json"))
    assert again == json.loads(json.dumps(law))
    middle = dict.fromkeys(FEATURES, 0.3) | {"steps": 6.0}
    assert predict(again["rules"][0]["saved"], middle) == predict(law["rules"][0]["saved"], middle)
    assert read_law()["needed"] == ENOUGH, "one ships"
    (tmp_path / "law.json").write_text('{"cells": 3, "needed": 2, "room": 3, "verdicts": {}, "rules": [{}]}')
    with pytest.raises(TacgError, match=r"is not a law: `rules\[0\].method` is missing"):
        read_law(tmp_path / "law.json")


def test_the_report_is_drawn_from_cells(tmp_path: Path) -> None:
    cells = [cell(number, lambda x: 0.02 * x["early"] + 0.05) for number in range(16)]
    law = law_of(cells)
    write_report(cells, law, tmp_path / "law.md", tmp_path / "law" / "law.png", waiting=2)
    text, details = ((tmp_path / name).read_text(encoding="utf-8") for name in ("law.md", "law/cells.md"))
    assert "![law](law/law.png)" in text
    assert "(law/cells.md)" in text
    assert "(../law.md)" in details
    assert "Incomplete cells, not shown: 2" in text
    assert "over 16 cells" in text
    assert "the trajectory adds something beyond a careful start" in text
    assert (text.count("| m3 |"), details.count("| m3 |")) == (4, 4 * 5), "four cells of each model in six tables"
    assert "Its AUP is the best of 3 decoders in 16 of 16 cells" in text
    assert "within its interval of the best in 16, and clearly behind in 0" in text
    points = pictured(cells, law)
    assert Counter(row["gate"] for row in points) == {"TACG": 16, AUTO: 16}
    assert all("expected" in row for row in points)


def test_the_readme_says_what_the_rows_say() -> None:
    cells, _ = cells_of(Ledger(HOME / "docs" / "results" / "rows.jsonl").rows.values())
    assert len(cells) >= ENOUGH
    text = (HOME / "README.md").read_text(encoding="utf-8")
    assert text == with_brief(text, cells), "run `make decoder-pages`"
    shipped = json.loads(json.dumps(law_of(cells)))
    assert read_law() == shipped, "run `tacg law --redraw --out docs/results --ship src/tacg/experiments/law.json`"


def test_a_cell_is_measured_once_and_made_of_rows(
    llm: tacg.LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, task = tmp_path / "rows.jsonl", get_task("reactions-30")
    measure(llm, task, Sample(2), Ledger(file), quick=True)
    rows = list(Ledger(file).rows.values())
    (found,), waiting = cells_of(rows)
    assert (found["task"], found["n"], found["decodes"], waiting) == ("reactions-30", 2, 17, 0)
    assert {(each["method"], each["base"], each["against"]) for each in found["gains"]} >= {
        ("TACG", "eb", "frontier"), ("TACG", "confidence", "careful starts"), ("HG only", "confidence", RANDOM),
        *((method, "confidence", "frontier") for method in (*STARTS, RANDOM)),
    }  # fmt: skip
    assert gain_of(found, "TACG")["accuracy_gained"] == 0, "no whole answer is right"
    assert cells_of(rows[:-1]) == ([], 1), "without features it is under way"
    monkeypatch.setattr("tacg.experiments.grid.evaluate", None)
    monkeypatch.setattr("tacg.experiments.diagnose.collect", None)
    monkeypatch.setattr(tacg.LLM, "stream", None)
    measure(llm, task, Sample(2), Ledger(file), quick=True)
    assert file.read_text().count("\n") == len(rows)


def test_the_command_line_measures_and_draws_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, ship = tmp_path / "law", tmp_path / "ship.json"
    law(model=["tiny"], task=["pocket-sudoku"], n=1, quick=True, out=out, ship=ship, as_json=True)
    made = capsys.readouterr().out
    assert [cell["task"] for cell in json.loads(made)["cells"]] == ["pocket-sudoku"]
    assert ship.read_bytes() == (out / "law.json").read_bytes()
    report = (tmp_path / "law.md").read_text(encoding="utf-8")
    assert f"There is no law yet: it takes {ENOUGH} cells, and 0 are there." in report
    law(out=out, redraw=True, as_json=True)
    assert capsys.readouterr().out == made
    assert (tmp_path / "law.md").read_text(encoding="utf-8") == report


def test_a_verdict_on_prompts_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "mine.txt", tmp_path / "out"
    file.write_text("What is 3 plus 4?\nab⟨3⟩cd\n", encoding="utf-8")
    known = law_of([cell(number, lambda x: 0.02 * x["early"]) for number in range(16)])
    path = write_law(known, tmp_path / "law.json")
    diagnose(prompts=file, model="tiny", setting=["gen_length=8"], law=path, out=out, as_json=True)
    said = capsys.readouterr()
    assert "over confidence " in said.err
    assert "over eb " in said.err
    assert "mine: Auto instead of confidence " in said.err
    (row,) = json.loads(said.out)["rows"]
    assert [each["policy"] for each in row["verdict"]] == ["tacg", "tacg+eb", AUTO]
    assert {*row["auc"]["reference"].values()} == {None}, "nobody knows what is right"
    assert row["features"]["final"]["steps"] >= 1
    with pytest.raises(TacgError, match="--prompts takes the place of --task"):
        diagnose(task=["pocket-math"], prompts=file)
