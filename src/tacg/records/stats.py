"""Intervals and tests: exact where that is cheap, otherwise seeded resampling."""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tacg.records.rows import ResultRow

Z95 = 1.959963984540054


def wilson(hits: int, n: int) -> tuple[float, float]:
    """95 % interval of a proportion (Wilson score)."""
    share, z2 = hits / n, Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    reach = Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def mcnemar(ours: Sequence[bool], theirs: Sequence[bool]) -> float:
    """Exact two-sided p-value for the hypothesis that two systems are right equally often on the same items."""
    gained = sum(a and not b for a, b in zip(ours, theirs, strict=True))
    lost = sum(b and not a for a, b in zip(ours, theirs, strict=True))
    n = gained + lost
    tail: float = sum(math.comb(n, k) for k in range(min(gained, lost) + 1)) / 2**n
    return min(1.0, 2 * tail)


def paired_bootstrap(
    ours: Sequence[float], theirs: Sequence[float], *, rounds: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """95 % interval of the mean difference `ours - theirs` over the same items."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    means = np.sort(resamples(len(differences), rounds, seed) @ np.array(differences, dtype=np.float64))
    return means[int(0.025 * rounds)] / len(differences), means[int(0.975 * rounds) - 1] / len(differences)


@functools.lru_cache(maxsize=8)  # comparisons reuse the same resamples
def resamples(n: int, rounds: int, seed: int = 0) -> NDArray[np.float64]:
    """How often each of n items is drawn in a resample of n, [rounds, n]."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), rounds).astype(np.float64)


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Rank correlation, ties at their mean rank; NaN where one side does not vary."""
    return float(_rank_correlation(np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)))


def spearman_interval(
    ours: Sequence[float], theirs: Sequence[float], *, rounds: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """95 % interval of the rank correlation over resampled pairs; NaN if hardly any resample has one."""
    places = np.random.default_rng(seed).integers(0, len(ours), (rounds, len(ours)))
    first, second = (np.asarray(values, dtype=np.float64)[places] for values in (ours, theirs))
    found = _rank_correlation(first, second)
    found = found[~np.isnan(found)]
    if len(found) < rounds / 2:
        return math.nan, math.nan
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def _rank_correlation(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Along the last axis."""
    first, second = _centred_ranks(ours), _centred_ranks(theirs)
    scale = np.sqrt((first**2).sum(axis=-1) * (second**2).sum(axis=-1))
    return np.where(scale > 0, (first * second).sum(axis=-1) / np.where(scale > 0, scale, 1.0), math.nan)


def _centred_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Twice the rank of each value among its row, less the mean: how many are below it, less how many are above."""
    sides = np.sign(values[..., :, None] - values[..., None, :])
    centred: NDArray[np.float64] = sides.sum(axis=-1)
    return centred


def aup(points: Sequence[tuple[float, float]], *, best: float | None = None, alpha: float = 3.0) -> float:
    """Accuracy under parallelism (d3LLM, Qian et al., 2026) of (TPF, accuracy in percent) points.

    The area under accuracy over TPF, from zero to the fastest point. An accuracy y below `best` counts as
    y exp(-alpha (1 - y / best)). Points more than 5 below the slowest one are left out. `best` is the reference
    accuracy, by default the highest of the points.
    """
    ordered = sorted(points)
    kept = [(tpf, y) for tpf, y in ordered if y >= ordered[0][1] - 5 - 1e-9]  # shares of n are not exact
    top = best if best is not None else max(y for _, y in kept)
    if top <= 0:
        return 0.0
    weighted = [(tpf, y * min(1.0, math.exp(-alpha * (1 - y / top)))) for tpf, y in kept]
    area = kept[0][0] * kept[0][1]
    for (left, low), (right, high) in itertools.pairwise(weighted):
        area += (right - left) * (low + high) / 2
    return area


def front(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """The rows that no other beats in both quality and steps, fastest first."""
    best, kept = -math.inf, []
    for row in sorted(rows, key=lambda row: (row["steps"], -row["quality"])):
        if row["quality"] > best:
            best = row["quality"]
            kept.append(row)
    return kept
