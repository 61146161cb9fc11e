"""Compare a point with a whole frontier: what would the other policy need to reach it, at any threshold?

The frontier is the upper envelope of a policy's rows, with straight lines between its points, because a threshold can
lie between two measured ones. All rows use the same problems, and intervals resample problems for the point and the
frontier together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacg.records.stats import aup, resamples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tacg.records.rows import ResultRow

    Array = NDArray[np.float64]


def over_frontiers(rows: Sequence[ResultRow], bases: Mapping[str, str]) -> list[ResultRow]:
    """The rows; those of a gated policy also get their gain over the frontier of its base policy (`bases`)."""
    frontiers: dict[tuple[str, str], list[ResultRow]] = {}
    for row in rows:
        frontiers.setdefault((row["task"], row["spec"]), []).append(row)
    found = []
    for row in rows:
        base = frontiers.get((row["task"], bases.get(row["spec"], "")))
        found.append(row | against_frontier(row, base) if base else row)
    return found


def against_frontier(row: ResultRow, base: Sequence[ResultRow], cost: str = "steps", rounds: int = 500) -> ResultRow:
    """Steps saved at equal accuracy (as a share) and accuracy gained at equal steps, with 95 % intervals.

    cost  what is saved: steps, or positions, which also counts the work of decoders that look ahead

    If the point is more accurate than the whole frontier, `saved` is measured against the frontier's best point, which
    understates it, and `beyond` is true. A point less accurate than all of the frontier saves nothing.
    """
    beyond = bool(row["accuracy"] > max(each["accuracy"] for each in base))
    return mean_gain([row], base, cost, rounds) | {"beyond": beyond}


def mean_gain(
    points: Sequence[ResultRow], base: Sequence[ResultRow], cost: str = "steps", rounds: int = 500, *,
    by_score: bool = False,
) -> ResultRow:  # fmt: skip
    """What a curve saves and gains over a frontier: the mean over its points, each as `against_frontier` says.

    Points that another point of the curve beats, faster and at least as accurate, do not count.

    by_score  an answer counts with the share of it that is right, instead of as right or wrong
    """
    rows = [*points, *base]
    right = np.array([each["item_scores"] if by_score else marks(each) for each in rows], dtype=np.float64)
    steps = np.array([each[f"item_{cost}"] for each in rows], dtype=np.float64)
    draws = _draws(right.shape[1], rounds)
    found = np.array([
        _gains(accuracy, pace, len(points)) for accuracy, pace in zip(draws @ right.T, draws @ steps.T, strict=True)
    ])  # fmt: skip
    low, high = np.quantile(found[1:], [0.025, 0.975], axis=0)
    return {
        "saved": float(found[0, 0]), "saved_ci": [float(low[0]), float(high[0])],
        "gained": float(found[0, 1]), "gained_ci": [float(low[1]), float(high[1])],
    }  # fmt: skip


def areas(
    curves: Mapping[str, Sequence[ResultRow]], careful: ResultRow, rounds: int = 500
) -> dict[str, Array]:  # fmt: skip
    """AUP of each curve: on the sample itself, then on resamples of its problems. All curves start at `careful`."""
    draws = _draws(careful["n"], rounds)
    tokens = careful["tpf_ratio"] * careful["forwards"] / careful["n"]  # the same for all: every mask is filled

    def points(row: ResultRow) -> Array:
        return np.stack([tokens / (draws @ np.array(row["item_forwards"])), 100 * (draws @ np.array(marks(row)))])

    known = {name: [points(row) for row in [careful, *rows]] for name, rows in curves.items()}
    best = np.max([point[1] for each in known.values() for point in each], axis=0)
    return {
        name: np.array([aup([tuple(point[:, draw]) for point in each], best=best[draw]) for draw in range(len(draws))])
        for name, each in known.items()
    }


def marks(row: ResultRow) -> list[bool]:
    """Which problems of a row were solved."""
    return [mark == "1" for mark in row["correct"]]


def _draws(n: int, rounds: int) -> Array:
    """Weights of problems [1 + rounds, n]: of the sample itself, then of resamples."""
    return np.vstack([np.ones(n), resamples(n, rounds)]) / n


def _gains(accuracy: Array, steps: Array, points: int) -> tuple[float, float]:
    """(share of steps saved, accuracy gained) of the first points over the frontier of the others, on average."""
    pace, height = envelope(steps[points:], accuracy[points:])
    took, right = envelope(steps[:points], accuracy[:points])
    saved = 1 - took / np.interp(right, height, pace)
    saved = np.where(right < height[0], np.minimum(saved, 0.0), saved)
    return float(saved.mean()), float((right - np.interp(took, pace, height)).mean())


def envelope(steps: Array, accuracy: Array) -> tuple[Array, Array]:
    """The points that no other beats in both, fastest first: steps and accuracy, both increasing."""
    order = np.lexsort((-accuracy, steps))
    kept: list[int] = []
    for place in order:
        if not kept or accuracy[place] > accuracy[kept[-1]]:
            kept.append(int(place))
    return steps[kept], accuracy[kept]
