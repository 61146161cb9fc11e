"""Every decoder on the same problems, each over its main knob, and TACG over each: which one should I use?

Decoding makes rows (`cells`, `grid.run`). Everything that is shown is computed from rows (`standings`).
"""

from __future__ import annotations

from statistics import mode
from typing import TYPE_CHECKING, Any

import numpy as np

from tacg.engine.request import Decode, resolve
from tacg.errors import TacgError
from tacg.experiments.evaluate import settings_of
from tacg.experiments.frontier import against_frontier, areas, over_frontiers
from tacg.experiments.grid import Cell
from tacg.policies import Policy, Wrapper, get_policy, policy_names
from tacg.policies.base import DEFAULT_BASE
from tacg.records.stats import aup, wilson
from tacg.records.summary import paired
from tacg.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tacg.experiments.grid import Sample
    from tacg.llm import LLM
    from tacg.records.rows import Ledger, ResultRow
    from tacg.tasks import Task

GATE = "tacg"
CAREFUL = "schedule"  # by default one token per step; all others are compared with it
EVERY, FEW = (1000, 1000), (2, 1)  # number of values of the main knob: of policies, and of TACG over them


def decoders() -> list[str]:
    """Every registered policy, then TACG over each policy that it can wrap."""
    names = [name for name in policy_names() if _made(name)]
    return [*names, *(spec for name in names if (spec := gated(name)) and spec not in names)]


def gated(name: str) -> str | None:
    """The name of TACG over a policy, as in tables; None for gates and for policies that it cannot wrap."""
    policy = None if name.startswith(GATE) else _made(f"{GATE}+{name}")
    return policy.label if policy else None


def _made(spec: str) -> Policy | None:
    try:
        return get_policy(spec)
    except TacgError:
        return None


def frontier_of(policy: Policy) -> tuple[str, tuple[Any, ...]]:
    """A policy's main knob and its values, from fast to careful; no knob and one value if it declares none."""
    declared: Policy = policy
    while declared.frontier is None and isinstance(declared, Wrapper):
        declared = declared.base
    return declared.frontier or ("", (None,))


def main_knob(policy: Policy) -> tuple[str, tuple[Any, ...]]:
    """A policy's main knob and its values: the default first, then by distance from it."""
    knob, values = frontier_of(policy)
    middle = values.index({**Decode().values(), **policy.values()}[knob]) if knob else 0
    return knob, tuple(values[place] for place in sorted(range(len(values)), key=lambda place: abs(place - middle)))


def cells(tasks: Sequence[Task], specs: Sequence[str], points: tuple[int, int] = EVERY) -> list[Cell]:
    """What to decode, in an order that is useful whenever it stops: all defaults, then other values, then TACG over X.

    points  maximum number of values of the main knob, for policies and for TACG over them. A value that a task's
            lengths do not allow is left out
    """
    found = []
    for over, most in zip((False, True), points, strict=True):
        curves = {spec: main_knob(get_policy(spec)) for spec in specs if ("+" in spec) is over}
        for depth in range(min(most, max((len(values) for _, values in curves.values()), default=0))):
            for spec, (knob, values) in curves.items():
                if depth < len(values):
                    settings = {knob: values[depth]} if knob else {}
                    found += [Cell(task, spec, settings, named(spec, knob, values[depth])) for task in tasks]
    return [cell for cell in found if _allowed(cell)]


def named(spec: str, knob: str, value: Any) -> str:
    """A point of a frontier in words."""
    return f"{spec} {knob}={'none' if value is None else value}" if knob else spec


def _allowed(cell: Cell) -> bool:
    try:
        resolve(cell.policy, settings_of(cell.task, cell.policy, cell.settings))
    except TacgError:
        return False
    return True


def is_known(llm: LLM, cell: Cell, sample: Sample, ledger: Ledger) -> bool:
    """Whether these problems, or more, were decoded before: by the same version, with the same model and settings."""
    settings = settings_of(cell.task, cell.policy, sample.settings_for(cell), llm)
    wanted = {
        "task": cell.task.name, "policy": resolve(cell.policy, settings)[0].label, "settings": settings,
        "weights": llm.identity["weights"], "seed": sample.seed, "split": sample.split, "version": __version__,
    }  # fmt: skip
    same = (row for row in ledger.rows.values() if row | wanted == row and row.get("n", 0) >= sample.n)
    return any(first_problems(row, sample.n) is not None for row in same)


# --- from rows to results --------------------------------------------------------------------------------------------


def standings(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Every point of an arena on the same problems, with the figures derived from all of them.

    spec, knob, value  the point; `default` if its value is the policy's own
    quality            the accuracy, as `choose` and `front` call it
    speed              tokens per second of processor time, from the newest run of this point; None if not measured
    base               `schedule` at one token per step, with paired differences to it
    aup, ahead, ahead_ci  of the decoder's whole curve on this task, starting at one token per step, and how far that is
                       ahead of the best other decoder's, if forwards are known problem by problem
    over, saved, gained, …  the policy under a wrapper, and the gain over its whole frontier

    Defaults may have been run on more problems than other points. Such a row is cut to its first problems, as many as
    most points of its task have.
    """
    points = _points(rows)
    bases = {row["spec"]: row["over"] for row in points if row["over"]}
    found = []
    for task in dict.fromkeys(row["task"] for row in points):
        here = [row for row in points if row["task"] == task]
        size = mode(sorted(row["n"] for row in here))
        mine = over_frontiers([each for row in here if (each := first_problems(row, size))], bases)
        careful = _careful(mine)
        aups = _aups(mine, careful)
        found += [row | aups[row["spec"]] | (paired(row, careful) if careful else {}) for row in mine]
    return found


def defaults(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Every decoder at its defaults, on all problems that it was run on; by task, the most accurate first.

    Differences to `schedule` are paired, if both were run on the same problems.
    """
    found = []
    points = [row for row in _points(rows) if row["default"]]
    for task in dict.fromkeys(row["task"] for row in points):
        mine = sorted((row for row in points if row["task"] == task), key=_most_accurate)
        careful = _careful(mine)
        found += [row | (paired(row, careful) if careful and careful["n"] == row["n"] else {}) for row in mine]
    return found


def first_problems(row: ResultRow, n: int) -> ResultRow | None:
    """A point as if only the first `n` problems had been decoded; None if the row does not tell.

    Answers are filled completely, so all have the same number of tokens.
    """
    if row["n"] == n:
        return row
    forwards = _forwards(row)
    if row["n"] < n or forwards is None:
        return None
    right, tokens = row["correct"][:n].count("1"), row["tpf_ratio"] * row["forwards"] / row["n"]
    items = {name: row[name][:n] for name in ("correct", "item_steps", "item_positions")} | {
        "item_forwards": forwards[:n]
    }
    return row | items | {
        "n": n, "accuracy": right / n, "quality": right / n, "accuracy_ci": list(wilson(right, n)),
        "steps": sum(items["item_steps"]) / n, "tpf": sum(tokens / each for each in items["item_forwards"]) / n,
        "forwards": sum(items["item_forwards"]), "positions": sum(items["item_positions"]),
        "tokens_per_position": n * tokens / sum(items["item_positions"]),
        "auxiliary_forwards": row["auxiliary_forwards"] * n / row["n"],
    }  # fmt: skip


def _careful(rows: Sequence[ResultRow]) -> ResultRow | None:
    """The row that all others are compared with."""
    return next((row for row in rows if row["spec"] == CAREFUL and row["default"]), None)


def _points(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """One row per task, decoder and value: of the newest model and seed, the one with the most problems."""
    there = [row for row in rows if "item_positions" in row]  # other rows are from other experiments
    known: dict[tuple[str, str, Any], ResultRow] = {}
    speeds: dict[tuple[str, str, Any], float] = {}
    for row in (row for row in there if _sample_of(row) == _sample_of(there[-1])):
        spec = row["policy"].partition("(")[0]
        policy = get_policy(spec)
        knob, values = main_knob(policy)
        value = row["settings"].get(knob, values[0])
        point = row["task"], spec, value
        speeds[point] = row.get("tokens_per_processor_second") or speeds.get(point, 0.0)
        if point not in known or row["n"] >= known[point]["n"]:
            known[point] = row | {
                "spec": spec, "knob": knob, "value": value, "default": value == values[0],
                "name": named(spec, knob, value), "quality": row["accuracy"],
                "over": policy.base.label if isinstance(policy, Wrapper) else None,
            }  # fmt: skip
    order = {name: place for place, name in enumerate(decoders())}
    kept = [row | {"speed": speeds[point] or None} for point, row in known.items()]
    return sorted(kept, key=lambda row: (row["task"], order.get(row["spec"], len(order)), row["steps"]))


def _sample_of(row: ResultRow) -> list[Any]:
    sample = [row.get(name) for name in ("model", "weights", "dtype", "seed", "split")]
    return [*sample, row["settings"].get("cache", "auto")]


def _forwards(row: ResultRow) -> list[int] | None:
    """Forwards by problem; old rows have them only if every step was one forward."""
    return row.get("item_forwards") or (row["item_steps"] if sum(row["item_steps"]) == row["forwards"] else None)


def _aups(rows: Sequence[ResultRow], careful: ResultRow | None) -> dict[str, ResultRow]:
    """AUP by decoder. The slowest point is that of one token per step, the best accuracy that of any decoder.

    Intervals resample problems; the best other decoder is chosen anew in each resample.
    """
    best = 100 * max(row["accuracy"] for row in rows)
    curves: dict[str, list[ResultRow]] = {}
    for row in rows:
        curves.setdefault(row["spec"], []).append(row)
    start = {(careful["tpf"], 100 * careful["accuracy"])} if careful else set()
    found: dict[str, ResultRow] = {
        spec: {"aup": aup(sorted(start | {(row["tpf"], 100 * row["accuracy"]) for row in curve}), best=best)}
        for spec, curve in curves.items()
    }
    known = {spec: [row | {"item_forwards": _forwards(row)} for row in curve] for spec, curve in curves.items()}
    if careful is None or len(known) < 2 or not all(row["item_forwards"] for curve in known.values() for row in curve):
        return found
    drawn = areas(known, careful | {"item_forwards": _forwards(careful)})
    for spec, mine in drawn.items():
        ahead = mine - np.max([area for other, area in drawn.items() if other != spec], axis=0)
        low, high = np.quantile(ahead[1:], [0.025, 0.975])
        found[spec] |= {"ahead": float(ahead[0]), "ahead_ci": [float(low), float(high)]}
    return found


def best_points(rows: Sequence[ResultRow], give: float) -> list[ResultRow]:
    """The point to use of each decoder on one task, the best decoder first.

    It has the fewest forwards among those at most `give` below the best accuracy of all decoders. Decoders that
    never reach that accuracy come last, each with its most accurate point.
    """
    bar = max(row["accuracy"] for row in rows) - give
    found = []
    for spec in dict.fromkeys(row["spec"] for row in rows):
        mine = [row for row in rows if row["spec"] == spec]
        good = [row for row in mine if row["accuracy"] >= bar]
        found.append(min(good, key=_fewest_forwards) if good else min(mine, key=_most_accurate))
    return sorted(found, key=lambda row: (row["accuracy"] < bar, *_order(row, bar)))


def _order(row: ResultRow, bar: float) -> tuple[float, float]:
    return _fewest_forwards(row) if row["accuracy"] >= bar else _most_accurate(row)


def _fewest_forwards(row: ResultRow) -> tuple[float, float]:
    return row["forwards"] / row["n"], -row["accuracy"]


def _most_accurate(row: ResultRow) -> tuple[float, float]:
    return -row["accuracy"], row["forwards"] / row["n"]


def against_default(rows: Sequence[ResultRow], points: Sequence[ResultRow]) -> list[Mapping[str, ResultRow]]:
    """What points of one task gain over the whole frontier of `confidence`: at equal steps and at equal positions.

    With only one measured threshold there is no frontier, so nothing is returned.
    """
    base = [row for row in rows if row["spec"] == DEFAULT_BASE]
    return [
        {cost: row | against_frontier(row, base, cost) for cost in ("steps", "positions")}
        for row in points if len(base) > 1 and row["spec"] != DEFAULT_BASE
    ]  # fmt: skip
