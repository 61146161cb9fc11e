"""The law: rules that predict what gates save, how well they do on held-out cells, and what they say of a model.

A rule is a mean, plus one or two features if these clearly predict better. It fits into a small JSON file, which is
part of the package (law.json).
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacg.errors import TacgError
from tacg.experiments.ablate import PARTS
from tacg.experiments.diagnose import FEATURES
from tacg.experiments.law import AUTO, BASES, gain_of
from tacg.files import read_json, write_file
from tacg.policies import get_policy
from tacg.policies.base import DEFAULT_BASE
from tacg.records.stats import Z95, spearman, spearman_interval
from tacg.records.tables import estimate
from tacg.shapes import COUNT, Number, misfit
from tacg.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tacg.records.rows import ResultRow

    Array = NDArray[np.float64]

ENOUGH = 9  # minimum number of cells: fewer say little about models that were not measured
ROOM = 3.0  # steps per block that confidence must take: where two are enough, all decoders lie on one curve
ANSWERED = 0.05  # score that some threshold must reach: if nothing is right, nothing can be gained
GOALS = ("saved", "gained")  # the first one chooses features and gates, and has a sign
FIT = {
    "features": [str], "centre": [Number()], "scale": [Number()], "weights": [Number()], "bias": Number(),
    "spread": Number(0), "low": [Number()], "high": [Number()],
}  # fmt: skip
# The shape of a law.
SHAPE = {
    "cells": COUNT, "needed": COUNT, "room": Number(0), "verdicts": dict,
    "rules": [{"method": str, "base": str, "policy": str, "settings": dict, "held_out": dict, "gained": FIT,
               "saved": FIT}],
}  # fmt: skip


def law_of(cells: Sequence[ResultRow]) -> dict[str, Any]:
    """Correlations, rules and how they did on held-out cells; no rules if there are too few cells."""
    answered = [cell for cell in cells if cell["score"] >= ANSWERED]
    usable = [cell for cell in answered if cell["features"]["steps"] >= ROOM]
    names = [name for name in FEATURES if all(cell["features"][name] is not None for cell in usable)]
    gates = [*((method, base) for base in BASES for method in PARTS), (AUTO, DEFAULT_BASE)]
    enough = len(usable) >= ENOUGH and names
    rules = [_rule(usable, names, *gate) for gate in gates] if enough else []
    return {
        "version": __version__, "cells": len(usable), "needed": ENOUGH, "unanswered": len(cells) - len(answered),
        "room": ROOM, "short": len(answered) - len(usable),
        "models": sorted({cell["model"] for cell in usable}), "tasks": sorted({cell["task"] for cell in usable}),
        "correlations": [each for gate in gates for each in _correlations(usable, names, *gate)] if enough else [],
        "rules": rules, "verdicts": _verdicts(usable, rules),
    }  # fmt: skip


def _correlations(cells: Sequence[ResultRow], names: Sequence[str], method: str, base: str) -> list[dict[str, Any]]:
    """Spearman's rho of each feature that varies with the gain, over cells."""
    gains = [gain_of(cell, method, base)[GOALS[0]] for cell in cells]
    found = []
    for name in names:
        values = [cell["features"][name] for cell in cells]
        rho, interval = spearman(values, gains), spearman_interval(values, gains)
        if not math.isnan(rho + sum(interval)):
            facts = {"method": method, "base": base, "feature": name}
            found.append(facts | {"rho": rho, "rho_ci": list(interval)})
    return found


def _rule(cells: Sequence[ResultRow], names: Sequence[str], method: str, base: str) -> dict[str, Any]:
    """The gate with its knobs, the fit for each goal, and how often its sign was right on held-out cells."""
    gains = {goal: np.array([gain_of(cell, method, base)[goal] for cell in cells]) for goal in GOALS}
    chosen = choose_features(cells, names, gains[GOALS[0]])
    held_out = {}
    for name, folds in _folds(cells).items():
        guesses = held_out_guesses(cells, names, gains[GOALS[0]], folds)
        clear = _clear(cells, method, base)
        held_out[name] = {"guesses": guesses.tolist(), **_signs(guesses, gains[GOALS[0]], clear)}
    label = AUTO if method == AUTO else get_policy(f"tacg+{base}").label
    knob = get_policy(AUTO if method == AUTO else base).frontier[0]  # type: ignore[index]
    return {
        "method": method, "base": base, "policy": label, "held_out": held_out,
        "settings": {**PARTS.get(method, {}), knob: best_value(cells, method, base)},
        **{goal: fit(cells, chosen, gains[goal]) for goal in GOALS},
    }  # fmt: skip


def _folds(cells: Sequence[ResultRow]) -> dict[str, list[Any]]:
    """What is held out together: every other cell, or all cells of a model, its ages included."""
    models = [cell["model"].partition("-age-")[0] for cell in cells]
    folds = {"halves": [place % 2 for place in range(len(cells))], "models": models}
    return {name: each for name, each in folds.items() if len({*each}) > 1}


def _clear(cells: Sequence[ResultRow], method: str, base: str) -> Array:
    """bool [cells]: where the interval of the gain does not contain zero."""
    edges = (gain_of(cell, method, base)[f"{GOALS[0]}_ci"] for cell in cells)
    return np.array([not low <= 0 <= high for low, high in edges])


def _signs(guesses: Array, gains: Array, clear: Array) -> dict[str, int]:
    """How many signs were right, and how many of those of clear gains."""
    right = (guesses > 0) == (gains > 0)
    counts = {"right": right.sum(), "of": len(gains), "clear_right": right[clear].sum(), "clear_of": clear.sum()}
    return {name: int(count) for name, count in counts.items()}


def _verdicts(cells: Sequence[ResultRow], rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `verdict` would have said of each held-out cell: how many signs of the gates that it names were right."""
    found: dict[str, Any] = {}
    for name in _folds(cells) if rules else {}:
        for rivals in _rivals(rules):
            guesses = np.array([rule["held_out"][name]["guesses"] for rule in rivals])
            gains = np.array([[gain_of(cell, *_gate(rule))[GOALS[0]] for cell in cells] for rule in rivals])
            clear = np.array([_clear(cells, *_gate(rule)) for rule in rivals])
            chosen = guesses.argmax(axis=0), np.arange(len(cells))
            counts = _signs(guesses[chosen], gains[chosen], clear[chosen])
            mine = found.setdefault(name, dict.fromkeys(counts, 0))
            found[name] = {each: mine[each] + count for each, count in counts.items()}
    return found


def _rivals(rules: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Rules of which a verdict names one: the gates over one base, and `auto` alone."""
    kinds = dict.fromkeys((rule["base"], rule["method"] == AUTO) for rule in rules)
    return [[rule for rule in rules if (rule["base"], rule["method"] == AUTO) == kind] for kind in kinds]


def _gate(rule: Mapping[str, Any]) -> tuple[str, str]:
    return rule["method"], rule["base"]


def best_value(cells: Sequence[ResultRow], method: str, base: str) -> Any:
    """The value of the main knob with the largest mean gain over cells."""
    sums: dict[Any, list[float]] = {}
    for cell in cells:
        for point in cell["points"]:
            if (point["method"], point["base"]) == (method, base):
                sums.setdefault(point["value"], []).append(point["gained"])
    return max(sums, key=lambda value: float(np.mean(sums[value])))


def _design(cells: Sequence[ResultRow], features: Sequence[str]) -> tuple[Array, Array, Array]:
    """A column of ones and the standardised features; their means and standard deviations."""
    values = np.array([[cell["features"][name] for name in features] for cell in cells], dtype=np.float64)
    values = values.reshape(len(cells), len(features))
    centre, scale = values.mean(axis=0), values.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    board = np.hstack([np.ones((len(cells), 1)), (values - centre) / scale])
    return board, centre, scale


def fit(cells: Sequence[ResultRow], features: Sequence[str], gains: Array) -> dict[str, Any]:
    """Least squares, standardised features; without any, the mean. `spread` and `explained` are leave-one-out."""
    board, centre, scale = _design(cells, features)
    weights, missed = np.linalg.pinv(board) @ gains, _missed(board, gains)
    plain = (gains - gains.mean()) * len(gains) / max(len(gains) - 1, 1)
    return {
        "features": list(features), "centre": centre.tolist(), "scale": scale.tolist(), "bias": float(weights[0]),
        "weights": weights[1:].tolist(), "spread": float(np.sqrt((missed**2).mean())),
        "explained": 1 - float((missed**2).sum() / (plain**2).sum()) if plain.any() else 0.0,
        "low": [min(cell["features"][name] for cell in cells) for name in features],
        "high": [max(cell["features"][name] for cell in cells) for name in features],
    }  # fmt: skip


def _missed(board: Array, gains: Array) -> Array:
    """By how much each cell is missed by a rule that is fitted on all others."""
    inverse = np.linalg.pinv(board)
    leverage = np.einsum("ij,ji->i", board, inverse)
    missed: Array = (gains - board @ inverse @ gains) / np.maximum(1 - leverage, 1e-6)
    return missed


def choose_features(cells: Sequence[ResultRow], names: Sequence[str], gains: Array) -> list[str]:
    """At most two features: as few as possible with a leave-one-out error within one standard error of the smallest.

    With a dozen cells, the smallest error alone prefers features that fit by chance: its signs on held-out cells were
    worse than those of the plain mean.
    """
    known: list[tuple[str, ...]] = [subset for size in range(3) for subset in itertools.combinations(names, size)]
    errors = {subset: _missed(_design(cells, subset)[0], gains) ** 2 for subset in known}
    best = min(errors.values(), key=lambda each: float(each.mean()))
    limit = best.mean() + best.std() / len(cells) ** 0.5
    size = min(len(subset) for subset in known if errors[subset].mean() <= limit)
    smallest = [subset for subset in known if len(subset) == size]
    chosen = min(smallest, key=lambda subset: float(errors[subset].mean()))
    return list(chosen)


def held_out_guesses(cells: Sequence[ResultRow], names: Sequence[str], gains: Array, folds: Sequence[Any]) -> Array:
    """The prediction for each cell of a rule that was chosen and fitted on all other folds."""
    fold = np.array(folds)
    guesses = np.zeros(len(cells))
    for name in dict.fromkeys(folds):
        seen = [place for place in range(len(cells)) if fold[place] != name]
        others = [cells[place] for place in seen]
        rule = fit(others, choose_features(others, names, gains[seen]), gains[seen])
        for place in np.flatnonzero(fold == name).tolist():
            guesses[place] = predict(rule, cells[place]["features"])
    return guesses


def predict(rule: Mapping[str, Any], features: Mapping[str, float | None]) -> float:
    """The gain that a rule predicts; a feature that could not be measured is replaced by its mean."""
    found = float(rule["bias"])
    for name, centre, scale, weight in zip(
        rule["features"], rule["centre"], rule["scale"], rule["weights"], strict=True
    ):
        value = features.get(name)
        found += 0.0 if value is None else weight * (value - centre) / scale
    return found


# --- the verdict on a model ------------------------------------------------------------------------------------------


def read_law(path: Path | None = None) -> dict[str, Any]:
    """The law of a file, or the one that comes with the package."""
    file = path or Path(__file__).with_name("law.json")
    hint = "make one with `tacg law`"
    law: dict[str, Any] = read_json(file, "law", hint)
    if wrong := misfit(law, SHAPE):
        raise TacgError(f"{file} is not a law: {wrong}; {hint}.")
    return law


def write_law(law: Mapping[str, Any], path: Path) -> Path:
    """As JSON, the same bytes for the same rows."""
    return write_file(path, json.dumps(law, indent=1) + "\n")


def verdict(features: Mapping[str, float | None], law: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each base, the gate that should save most, and `auto`: gains with 95 % intervals, knobs, past accuracy.

    Nothing where blocks are done in so few steps that nothing can be saved.
    """
    steps, found = features.get("steps"), list[dict[str, Any]]()
    if steps is not None and steps < law["room"]:
        return found
    for rivals in _rivals(law["rules"]):
        rule = max(rivals, key=lambda rule: predict(rule[GOALS[0]], features))
        facts = {name: rule[name] for name in ("method", "base", "policy", "settings")}
        for goal in GOALS:
            expected, reach = predict(rule[goal], features), Z95 * rule[goal]["spread"]
            facts |= {goal: expected, f"{goal}_ci": [expected - reach, expected + reach]}
        facts["held_out"] = {
            name: {key: value for key, value in each.items() if key != "guesses"}
            for name, each in rule["held_out"].items()
        }
        facts["unlike"] = [name for name in rule[GOALS[0]]["features"] if not _within(rule[GOALS[0]], name, features)]
        found.append(facts)
    return found


def _within(rule: Mapping[str, Any], name: str, features: Mapping[str, float | None]) -> bool:
    place, value = rule["features"].index(name), features.get(name)
    return value is not None and rule["low"][place] <= value <= rule["high"][place]


def in_words(found: Sequence[Mapping[str, Any]], law: Mapping[str, Any]) -> list[str]:
    """The verdict as sentences."""
    if not law["rules"]:
        return [
            f"No verdict: the law was fitted on {law['cells']} cells (models x tasks), and {law['needed']} are needed. "
            "`tacg law` measures them; `--law FILE` takes its law.json."
        ]
    if not found:
        return [
            f"No verdict: {DEFAULT_BASE} finishes a block in fewer than {law['room']:g} steps here, so there is hardly "
            "anything to save, and a gate may only add steps."
        ]
    tested = [
        f"{each['right']} of {each['of']} with {name} held out ({each['clear_right']} of {each['clear_of']} clear ones)"
        for name, each in law["verdicts"].items()
    ]
    sure = f"On the {law['cells']} cells of the law, the signs of such verdicts were right in {' and '.join(tested)}."
    return [*(_sentence(each) for each in found), *([sure] if tested else [])]


def _sentence(each: Mapping[str, Any]) -> str:
    low, high = each[f"{GOALS[0]}_ci"]
    likely = "may save" if each[GOALS[0]] > 0 else "may cost"
    head = "should save" if low > 0 else "should cost" if high < 0 else likely
    knobs = " ".join(f"{name}={value}" for name, value in each["settings"].items())
    which = f"{AUTO} instead of {each['base']}" if each["method"] == AUTO else f"{each['method']} over {each['base']}"
    said = f"{which[0].upper()}{which[1:]} {head} steps: expect {_percent(each, 'saved')} % fewer at equal score, or "
    said += f"{_percent(each, 'gained')} points of score at equal steps. Knobs: {each['policy']} with {knobs}."
    if each["unlike"]:
        said += f" Outside the range of all cells of the law: {', '.join(FEATURES[name] for name in each['unlike'])}."
    return said


def _percent(each: Mapping[str, Any], goal: str) -> str:
    low, high = each[f"{goal}_ci"]
    return estimate(100 * each[goal], 100 * low, 100 * high)
