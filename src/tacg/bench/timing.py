"""Measure how long something takes, repeatedly."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


Name = TypeVar("Name", str, tuple[str, int, int])


def now(device: str | torch.device = "cpu") -> float:
    """Seconds, read after the device has finished its work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def race(runners: Mapping[Name, Callable[[], object]], rounds: int, device: str = "cpu") -> dict[Name, list[float]]:
    """Seconds of every runner, [p20, p50, p80]. They take turns, so a slow moment of the machine affects all."""
    times: dict[Name, list[float]] = {name: [] for name in runners}
    for _ in range(2):
        for run in runners.values():
            run()  # warm-up: memory is touched, code is loaded
    for _ in range(max(rounds, 3)):
        for name, run in runners.items():
            began = now(device)
            run()
            times[name].append(now(device) - began)
    return {name: quantiles(values) for name, values in times.items()}


def quantiles(values: Sequence[float]) -> list[float]:
    """p20, p50 and p80."""
    return [float(each) for each in np.quantile(values, [0.2, 0.5, 0.8])]
