"""Measure how long something takes, repeatedly."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Name = TypeVar("Name", str, tuple[str, int, int])


def race(runners: Mapping[Name, Callable[[], object]], rounds: int) -> dict[Name, list[float]]:
    """Seconds of every runner, [p20, p50, p80]. They take turns, so a slow moment of the machine affects all."""
    times: dict[Name, list[float]] = {name: [] for name in runners}
    for _ in range(2):
        for run in runners.values():
            run()  # warm-up: memory is touched, code is loaded
    for _ in range(max(rounds, 3)):
        for name, run in runners.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    return {name: quantiles(values) for name, values in times.items()}


def quantiles(values: Sequence[float]) -> list[float]:
    """p20, p50 and p80."""
    return [float(each) for each in np.quantile(values, [0.2, 0.5, 0.8])]
