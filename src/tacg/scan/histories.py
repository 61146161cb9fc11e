"""Histories for a few policies, on all backends: token credit, posteriors of earlier steps, Dream's temperature."""

from __future__ import annotations

from math import exp, log
from typing import TYPE_CHECKING

import torch

from tacg.scan.reference import SMOOTHING, widened

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.scan.step_scan import StepScan
    from tacg.types import Credit

SHARP = 0.2  # the temperature at which Dream is run
AT_A_TIME = 64  # rows of logits that are processed at a time


def add_credit(scan: StepScan, credit: Credit) -> None:
    """Update the credit of the tokens with this step, and make the scan read logits that include it."""
    store = scan.memory.store("credit", scan.logits)
    scan.logits, scan.rows = earn(scan.picked(), store, scan.slots, scan.first, credit), None


def looked_back(scan: StepScan) -> dict[str, Tensor]:
    """The requested signals about earlier posteriors (reverse_kl, drift); 0 where they are not wanted."""
    past = scan.needs.past
    steps, decay = (past.steps, past.decay) if past else (1, 0.0)
    store = scan.memory.store("past", scan.logits, steps)
    found = look_back(scan.picked(), store, scan.slots, scan.memory.age, scan.first, scan.needs.names, decay)
    return {name: values.masked_fill(~scan.wanted, 0.0) for name, values in found.items()}


def earn(logits: Tensor, store: Tensor, slots: Tensor, first: Tensor, credit: Credit) -> Tensor:
    """Logits [P, V] plus the credit of their tokens; this step's credit is added to the store (see `Credit`)."""
    z = widened(logits)
    share, best = z.softmax(dim=1).max(dim=1, keepdim=True)
    held = store[slots].masked_fill(first[:, None], 0.0) * credit.decay
    held.scatter_add_(1, best, share**credit.power)
    store[slots] = held
    return z + credit.weight * held.log1p()


def look_back(
    logits: Tensor, past: Tensor, slots: Tensor, age: Tensor, first: Tensor, names: frozenset[str], decay: float
) -> dict[str, Tensor]:
    """The requested ones of reverse_kl and drift, [P] each, for logits [P, V]; updates `past` and `age`.

    past   float [slots, D, V], logs of the smoothed posteriors of the last D steps: step s is at s modulo D
    age    int64 [slots], how many steps are in `past`, counted from the last `first`
    decay  a step's weight falls by exp(-decay) for each step further back
    """
    now = (widened(logits).softmax(dim=1) + SMOOTHING).log()
    depth, seen = past.shape[1], age[slots].masked_fill(first, 0)
    found = {}
    if "reverse_kl" in names:
        before = past[slots, (seen - 1) % depth].masked_fill(first[:, None], -log(now.shape[1]))
        found["reverse_kl"] = (before.exp() * (before - now)).sum(dim=1).clamp_min(0.0)
    if "drift" in names:
        weights = [exp(-decay * (lag - 1)) for lag in range(1, depth + 1)]
        mean = torch.zeros_like(now)
        for lag, weight in enumerate(weights, start=1):
            before = past[slots, (seen - lag) % depth].masked_fill((seen < lag)[:, None], log(SMOOTHING))
            mean += before * (weight / sum(weights))
        found["drift"] = (now.exp() * (now - mean)).sum(dim=1).clamp_min(0.0)
    past[slots, seen % depth] = now.to(past.dtype)
    age[slots] = seen + 1
    return found


def sharpened(logits: Tensor, rows: Tensor | None) -> Tensor:
    """The probability of the top token at temperature 0.2, [P], of logits [N, V] at `rows` int64 [P] (None: all)."""
    picked = range(0, len(logits) if rows is None else len(rows), AT_A_TIME)
    parts = (slice(start, start + AT_A_TIME) for start in picked)
    return torch.cat(
        [(widened(logits[part if rows is None else rows[part]]) / SHARP).softmax(dim=1).amax(dim=1) for part in parts]
    )
