"""When does the trajectory help? What TACG gains over the whole frontier of its base, cell by cell: models x tasks.

Decoding makes rows (`measure`); cells are computed from rows (`cells_of`). A cell has the gains of the gates, those of
controls, which do part of what the gate does without a trajectory, and features of the model that need no labels.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tacg.engine.events import Step
from tacg.engine.request import resolve
from tacg.experiments.ablate import PARTS
from tacg.experiments.controls import CarefulStart, HeldAtRandom, Outspoken
from tacg.experiments.diagnose import diagnose
from tacg.experiments.evaluate import settings_of
from tacg.experiments.frontier import areas, mean_gain
from tacg.experiments.grid import Cell, Sample, run, takes
from tacg.models.judges import JUDGES
from tacg.policies import get_policy
from tacg.policies.base import DEFAULT_BASE
from tacg.policies.tacg import Tacg
from tacg.records.rows import Ledger, ResultRow, key_of
from tacg.records.stats import resamples
from tacg.shapes import COUNT, Number
from tacg.tasks import get_task, judged_names, task_names
from tacg.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tacg.experiments.grid import Tick
    from tacg.llm import LLM
    from tacg.tasks import Task

HISTORY, WHOLE = "HG only", "TACG"  # as `PARTS` calls them
FRONTIER, BY_STEPS, BY_SHARE, RANDOM = "frontier", "careful for two steps", "careful by share masked", "held at random"
STARTS = (BY_STEPS, BY_SHARE)
AUTO = "auto"  # our own default: not a gate, but measured on the same problems
# The main knob of each curve and its values, fast ones first. Slower ones would cost more than all others together.
CURVES: dict[str, tuple[str, tuple[float, ...]]] = {
    DEFAULT_BASE: ("threshold", (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)),
    "eb": ("bound", (1.0, 0.3, 0.1, 0.03)),
    AUTO: ("bound", (0.5, 0.2, 0.1, 0.05, 0.02)),
}
# Where gates are tried: thresholds below `tau_escape`, so that the History Gate can hold something back.
TRIED: dict[str, tuple[float, ...]] = {DEFAULT_BASE: (0.5, 0.8), "eb": (1.0, 0.3)}
BASES = tuple(TRIED)
LOWS = (0.3, 0.5)  # thresholds that a careful start ends with
FEW = 4  # minimum number of cells for a bootstrap
PROBED = 100  # maximum number of problems for which every proposal is recorded
CAREFUL = "schedule"  # one token per step: the decoder whose proposals are recorded
RATE = {"held": COUNT, "of": COUNT, "rate": Number(0, 1), "threshold": Number(0, 1)}


def tasks_for(model: str) -> list[Task]:
    """A model's tasks by default: a judge fills holes in texts of its own kind, others get the tasks of pocket."""
    judge = JUDGES.get(model)
    if judge is None:
        return [get_task(name) for name in task_names(model)]
    return [get_task(name) for name in judged_names() if name.startswith(judge.task or "-")]


def plan(task: Task, quick: bool = False) -> list[Cell]:
    """What is decoded in a cell, without the random control, whose rate is not known yet."""
    found = []
    for base in BASES:
        knob, values = CURVES[base]
        found += [_cell(task, base, {knob: value}, FRONTIER, base, value) for value in _every(values, quick)]
        for part, off in PARTS.items():
            gate = get_policy(f"tacg+{base}").label
            found += [_cell(task, gate, {**off, knob: value}, part, base, value) for value in _some(TRIED[base], quick)]
    knob, values = CURVES[AUTO]
    found += [_cell(task, AUTO, {knob: value}, AUTO, DEFAULT_BASE, value) for value in _every(values, quick)]
    for low in _some(LOWS, quick):
        found.append(_cell(task, CarefulStart(), {"threshold": low}, BY_STEPS, DEFAULT_BASE, low))
        by_share = {"threshold": low, "by": "share", "first": 1.0}
        found.append(_cell(task, CarefulStart(), by_share, BY_SHARE, DEFAULT_BASE, low))
    return found


def _every(values: Sequence[Any], quick: bool) -> Sequence[Any]:
    return values[::2] if quick else values


def _some(values: Sequence[Any], quick: bool) -> Sequence[Any]:
    return values[:1] if quick else values


def _cell(task: Task, policy: Any, settings: Mapping[str, Any], method: str, base: str, value: Any) -> Cell:
    tags = {"method": method, "base": base, "value": value}
    return Cell(task, policy, settings, f"{method} over {base} {value}", tags)


def measure(
    llm: LLM, task: Task, sample: Sample, ledger: Ledger, tick: Tick | None = None, quick: bool = False
) -> None:
    """All rows of one cell; existing rows are not decoded again."""
    probed = replace(sample, n=min(sample.n, PROBED))
    run(llm, plan(task, quick), sample, ledger, tick)
    by_chance = []
    for threshold in _some(TRIED[DEFAULT_BASE], quick):
        rate = held_back(llm, task, probed, threshold, ledger)["rate"]
        settings = {"threshold": threshold, "rate": round(rate, 4)}
        policy = HeldAtRandom(base=get_policy(DEFAULT_BASE))
        by_chance.append(_cell(task, policy, settings, RANDOM, DEFAULT_BASE, threshold))
    run(llm, by_chance, sample, ledger, tick)
    diagnose(llm, [task], CAREFUL, probed, ledger, tick, takes(CAREFUL, sample.settings))


def held_back(llm: LLM, task: Task, sample: Sample, threshold: float, ledger: Ledger) -> ResultRow:
    """The share of proposals that the History Gate held back, of those that its base was ready to commit.

    Those that reach `tau_escape` are not counted: no gate holds them back.
    """
    gate = get_policy("tacg", **PARTS[HISTORY], threshold=threshold)
    assert isinstance(gate, Tacg)
    settings = settings_of(task, gate, takes(gate, sample.settings), llm)
    key = key_of(
        held=repr(task), rule=repr(resolve(gate, settings)), model=llm.identity, version=__version__,
        n=sample.n, seed=sample.seed, split=sample.split,
    )  # fmt: skip
    row = ledger.get(key, RATE)
    if row is not None:
        return row
    problems = list(task.problems(sample.split, sample.n, sample.seed))
    asked, held, of = [problem.asked for problem in problems], 0, 0
    told = replace(gate, base=Outspoken(base=gate.base))
    for event in llm.stream(asked, told, batch_size=sample.batch_size, **settings):
        if isinstance(event, Step):
            for each in event.proposals:
                if each.signals["ready"] and each.confidence < gate.gate.tau_escape:
                    of += 1
                    held += each.signals["streak"] < gate.gate.m_base
    facts = {"task": task.name, "model": llm.model.spec.name, "weights": llm.identity["weights"], "n": sample.n}
    facts |= {"seed": sample.seed, "split": sample.split, "threshold": threshold}
    return ledger.add(key, facts | {"held": held, "of": of, "rate": held / of if of else 0.0})


# --- from rows to results --------------------------------------------------------------------------------------------


def cells_of(rows: Iterable[ResultRow]) -> tuple[list[ResultRow], int]:
    """One record per complete model, task and split, and how many are incomplete.

    gains     of every method over the frontier of its base, averaged over its points, and over that frontier together
              with a control's points (`against`): by score, and by accuracy with `accuracy_` before the name
    aup       of every decoder's curve, and how far `auto` is ahead of the best other one, with its interval
    features  without labels; `reference`: the same compared with reference answers
    rates     at which the gate holds proposals back, by threshold
    """
    groups: dict[tuple[Any, ...], list[ResultRow]] = defaultdict(list)
    for row in rows:
        if "weights" in row:
            groups[tuple(row.get(name) for name in ("model", "weights", "task", "split", "seed"))].append(row)
    found = [_record(groups[key]) for key in sorted(groups, key=str)]
    return [cell for cell in found if cell is not None], found.count(None)


def methods() -> dict[str, dict[str, Any]]:
    """The role of each policy in a law, by its label."""
    cells = plan(get_task(task_names()[0]))
    return {resolve(cell.policy, dict(cell.settings))[0].label: dict(cell.tags) for cell in cells}


def _record(rows: Sequence[ResultRow]) -> ResultRow | None:
    known = methods()
    points: dict[tuple[str, str], dict[Any, ResultRow]] = defaultdict(dict)
    most = max((row["n"] for row in rows if "item_steps" in row), default=0)
    for row in rows:
        tags = known.get(row.get("policy", ""))
        if row.get("policy", "").startswith(HeldAtRandom.name):
            tags = {"method": RANDOM, "base": DEFAULT_BASE, "value": row["settings"]["threshold"]}
        if tags and "item_steps" in row and row["n"] == most:
            points[tags["method"], tags["base"]][tags["value"]] = row
    curves = {key: list(mine.values()) for key, mine in points.items()}
    wanted = {(part, base) for part in (FRONTIER, *PARTS) for base in BASES}
    wanted |= {(method, DEFAULT_BASE) for method in (*STARTS, RANDOM, AUTO)}
    probe = next((row for row in reversed(rows) if "features" in row), None)
    if probe is None or wanted - curves.keys() or min(len(curves[FRONTIER, base]) for base in BASES) < 2:
        return None
    frontier = curves[FRONTIER, DEFAULT_BASE]
    every = [row for curve in curves.values() for row in curve]
    best = [
        {"method": method, "base": base, "value": value, "gained": _gain([row], curves[FRONTIER, base])["gained"]}
        for (method, base), mine in points.items() if method in (*PARTS, AUTO) for value, row in mine.items()
    ]  # fmt: skip
    return {
        **{name: every[0][name] for name in ("model", "weights", "task", "split", "seed", "n", "dtype")},
        **{name: max(row[name] for row in frontier) for name in ("accuracy", "score")}, **_aups(curves),
        "features": probe["features"]["final"],
        "reference": probe["features"]["reference"], "gains": _gains(curves), "points": best,
        "rates": {str(row["threshold"]): row["rate"] for row in rows if "held" in row},
        "seconds": sum(row["seconds"] for row in every), "decodes": len(every),
    }  # fmt: skip


def _gains(curves: Mapping[tuple[str, str], Sequence[ResultRow]]) -> list[ResultRow]:
    """Every curve against its base's frontier; those over the default base also against what controls reach."""
    frontier = curves[FRONTIER, DEFAULT_BASE]
    starts = [row for method in STARTS for row in curves[method, DEFAULT_BASE]]
    rivals = {"careful starts": [*frontier, *starts], RANDOM: [*frontier, *curves[RANDOM, DEFAULT_BASE]]}
    found = []
    for (method, base), mine in curves.items():
        against = {} if method == FRONTIER else {FRONTIER: curves[FRONTIER, base]}
        if method in PARTS and base == DEFAULT_BASE:
            against |= rivals
        if method == AUTO:
            against |= {base: curves[FRONTIER, base] for base in BASES[1:]}
        for name, rows in against.items():
            found.append({"method": method, "base": base, "against": name} | _gain(mine, rows))
    return found


def _gain(points: Sequence[ResultRow], base: Sequence[ResultRow]) -> ResultRow:
    """By score, which varies less than right or wrong and is not zero where whole answers are rarely right; and by
    accuracy."""
    by_accuracy = {f"accuracy_{name}": value for name, value in mean_gain(points, base).items()}
    return mean_gain(points, base, by_score=True) | by_accuracy


def _aups(curves: Mapping[tuple[str, str], Sequence[ResultRow]]) -> ResultRow:
    """The area under each decoder's curve. All start at the most careful threshold of the default base."""
    shown = {base: curves[FRONTIER, base] for base in BASES}
    shown |= {get_policy(f"tacg+{base}").label: curves[WHOLE, base] for base in BASES}
    shown[AUTO] = curves[AUTO, DEFAULT_BASE]
    found = areas(shown, max(shown[DEFAULT_BASE], key=lambda row: row["steps"]))
    ahead = found[AUTO] - np.max([area for name, area in found.items() if name != AUTO], axis=0)
    return {
        "aup": {name: float(area[0]) for name, area in found.items()}, "ahead": float(ahead[0]),
        "ahead_ci": [float(edge) for edge in np.quantile(ahead[1:], [0.025, 0.975])],
    }  # fmt: skip


def gain_of(cell: ResultRow, method: str, base: str = DEFAULT_BASE, against: str = FRONTIER) -> ResultRow:
    """One gain of a cell."""
    wanted = {"method": method, "base": base, "against": against}
    return next(each for each in cell["gains"] if each | wanted == each)


def mean_over(cells: Sequence[ResultRow], goal: str, *which: str) -> tuple[float, float, float]:
    """The mean of a gain over cells with its 95 % interval (NaN if there are too few cells)."""
    values = np.array([gain_of(cell, *which)[goal] for cell in cells])
    if len(values) < FEW:
        return float(values.mean()), math.nan, math.nan
    means = resamples(len(values), 2000) @ values / len(values)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(values.mean()), float(low), float(high)
