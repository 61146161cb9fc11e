"""The law: a rule of one or two features that predicts what a gate gains, how well it does on held-out cells, and what
it predicts for a model. It fits into a small JSON file, which is part of the package (law.json)."""

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
from tacg.experiments.law import AUTO, BASES, gain_of, mean_over
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

ENOUGH = 12  # minimum number of cells: with fewer, a rule of two features would fit anything
ANSWERED = 0.05  # score that some threshold must reach: if nothing is right, nothing can be gained
GOALS = ("gained", "saved")  # the first one chooses the features
FIT = {
    "features": [str], "centre": [Number()], "scale": [Number()], "weights": [Number()], "bias": Number(),
    "spread": Number(0), "low": [Number()], "high": [Number()],
}  # fmt: skip
# The shape of a law.
SHAPE = {
    "cells": COUNT, "needed": COUNT, "auto": [Number()],
    "rules": [{"method": str, "base": str, "policy": str, "settings": dict, "held_out": dict, "gained": FIT,
               "saved": FIT}],
}  # fmt: skip


def law_of(cells: Sequence[ResultRow]) -> dict[str, Any]:
    """Correlations, rules and how they did on held-out cells; no rules if there are too few cells."""
    usable = [cell for cell in cells if cell["score"] >= ANSWERED]
    names = [name for name in FEATURES if all(cell["features"][name] is not None for cell in usable)]
    gates = [(method, base) for base in BASES for method in PARTS]
    enough = len(usable) >= ENOUGH and names
    return {
        "version": __version__, "cells": len(usable), "needed": ENOUGH, "unanswered": len(cells) - len(usable),
        "models": sorted({cell["model"] for cell in usable}), "tasks": sorted({cell["task"] for cell in usable}),
        "auto": [*mean_over(usable, "saved", AUTO)] if enough else [],
        "correlations": [each for gate in gates for each in _correlations(usable, names, *gate)] if enough else [],
        "rules": [_rule(usable, names, *gate) for gate in gates] if enough else [],
    }  # fmt: skip


def _correlations(cells: Sequence[ResultRow], names: Sequence[str], method: str, base: str) -> list[dict[str, Any]]:
    """Spearman's rho of each feature that varies with the gain, over cells."""
    gains = [gain_of(cell, method, base)["gained"] for cell in cells]
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
    halves = [place % 2 for place in range(len(cells))]
    apart: dict[str, Sequence[Any]] = {"halves": halves, "models": [cell["model"] for cell in cells]}
    clear = [not low <= 0 <= high for low, high in (gain_of(cell, method, base)["gained_ci"] for cell in cells)]
    held_out = {}
    for name, folds in apart.items():
        if len({*folds}) > 1:
            guesses = held_out_guesses(cells, names, gains[GOALS[0]], folds)
            right = (guesses > 0) == (gains[GOALS[0]] > 0)
            held_out[name] = {"right": int(right.sum()), "of": len(cells), "guesses": guesses.tolist()}
            held_out[name] |= {"clear_right": int(right[clear].sum()), "clear_of": sum(clear)}
    return {
        "method": method, "base": base, "policy": get_policy(f"tacg+{base}").label, "held_out": held_out,
        "settings": {**PARTS[method], get_policy(base).frontier[0]: best_value(cells, method, base)},  # type: ignore[index]
        **{goal: fit(cells, chosen, gains[goal]) for goal in GOALS},
    }  # fmt: skip


def best_value(cells: Sequence[ResultRow], method: str, base: str) -> Any:
    """The value of the main knob with the largest mean gain over cells."""
    sums: dict[Any, list[float]] = {}
    for cell in cells:
        for point in cell["points"]:
            if (point["method"], point["base"]) == (method, base):
                sums.setdefault(point["value"], []).append(point["gained"])
    return max(sums, key=lambda value: float(np.mean(sums[value])))


def _design(cells: Sequence[ResultRow], features: Sequence[str]) -> Array:
    return np.array([[cell["features"][name] for name in features] for cell in cells], dtype=np.float64)


def fit(cells: Sequence[ResultRow], features: Sequence[str], gains: Array) -> dict[str, Any]:
    """Least squares, standardised features. `spread` and `explained` are leave-one-out figures."""
    values = _design(cells, features)
    centre, scale = values.mean(axis=0), values.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    board = np.hstack([np.ones((len(cells), 1)), (values - centre) / scale])
    inverse = np.linalg.pinv(board)
    weights = inverse @ gains
    leverage = np.einsum("ij,ji->i", board, inverse)
    missed = (gains - board @ weights) / np.maximum(1 - leverage, 1e-6)
    plain = (gains - gains.mean()) * len(gains) / max(len(gains) - 1, 1)
    return {
        "features": list(features), "centre": centre.tolist(), "scale": scale.tolist(), "bias": float(weights[0]),
        "weights": weights[1:].tolist(), "spread": float(np.sqrt((missed**2).mean())),
        "explained": 1 - float((missed**2).sum() / (plain**2).sum()) if plain.any() else 0.0,
        "low": values.min(axis=0).tolist(), "high": values.max(axis=0).tolist(),
    }  # fmt: skip


def choose_features(cells: Sequence[ResultRow], names: Sequence[str], gains: Array) -> list[str]:
    """The one or two features whose rule has the smallest leave-one-out error."""
    known: list[tuple[str, ...]] = [subset for size in (1, 2) for subset in itertools.combinations(names, size)]
    best = min(known, key=lambda subset: fit(cells, subset, gains)["spread"])
    return list(best)


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
    """For each base, the gate with the largest predicted gain: gains with 95 % intervals, knobs, and past accuracy."""
    found = []
    for base in dict.fromkeys(rule["base"] for rule in law["rules"]):
        rules = [rule for rule in law["rules"] if rule["base"] == base]
        rule = max(rules, key=lambda rule: predict(rule[GOALS[0]], features))
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
    saved, low, high = (100 * each for each in law["auto"])
    ours = f"Or use {AUTO}, which follows the trajectory in another way: on the {law['cells']} cells of the law it "
    ours += f"saved {estimate(saved, low, high)} % of the steps of {DEFAULT_BASE} at equal score."
    return [*(_sentence(each) for each in found), ours]


def _sentence(each: Mapping[str, Any]) -> str:
    low, high = each["gained_ci"]
    head = "should help" if low > 0 else "should cost" if high < 0 else "may help" if each["gained"] > 0 else "may cost"
    knobs = " ".join(f"{name}={value}" for name, value in each["settings"].items())
    said = f"Over {each['base']}, {each['method']} {head}: expect {_percent(each, 'gained')} points of score "
    said += f"at equal steps, and {_percent(each, 'saved')} % of the steps saved at equal score. "
    said += f"Knobs: {each['policy']} with {knobs}."
    for name, of in (("halves", "of cells held out"), ("models", "held-out cells")):
        if name in each["held_out"]:
            one = each["held_out"][name]
            said += f" Its sign was right on {one['right']} of {one['of']} {of}"
            said += f" ({one['clear_right']} of {one['clear_of']} with a clear gain)."
    if each["unlike"]:
        said += f" Outside the range of all cells of the law: {', '.join(FEATURES[name] for name in each['unlike'])}."
    return said


def _percent(each: Mapping[str, Any], goal: str) -> str:
    low, high = each[f"{goal}_ci"]
    return estimate(100 * each[goal], 100 * low, 100 * high)
