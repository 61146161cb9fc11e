"""Where temporal support can decide something. A CPU measures it there and nowhere else; the commits are the same.

Reference and readout cost a pass over the vocabulary each. Support moves readiness by at most λ, so that most positions
win or lose by confidence alone, and most others once the reference is known (`most_support`). The questions asked here
need answers in the middle of a step, which is nothing to a CPU and a stall to a GPU: there the scan measures everything
in one pass, and this file does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.gate import GateConfig
    from tacg.types import Signals

ROUNDING = 1e-5  # relative, far more than there is
FEW = 4  # so few readouts are measured at once: finding out which of them can be spared would take longer


def where_support_matters(
    signals: Signals, base: Tensor, candidates: Tensor, budget: Tensor | int, quota: Tensor | None, config: GateConfig
) -> tuple[Signals, Tensor | None]:
    """The signals with as much of the contrast as support needs, and where, bool [R, L] (None: nowhere).

    candidates, budget  the contest for promotion: at most `budget` (int64 [R] or one for all) of the candidates win
    quota               int64 [R], commits that each row is to reach by readiness; None: nobody asks for that
    """
    if signals.measure is None:
        return signals, signals.observed if "reference" in signals.measured else None
    if config.max_support is not None:
        return signals.with_contrast(signals.observed), signals.observed
    if not isinstance(budget, torch.Tensor):
        budget = torch.full((len(base),), budget, device=base.device)
    contests = [(candidates, budget)]
    if quota is not None:
        left = quota - base.sum(dim=1)
        if bool((left > 0).any()):
            short = left > torch.minimum(candidates.sum(dim=1), budget)
            contests.append((signals.eligible & ~base & short[:, None], left))
    contests = [(among & _open(among, count)[:, None], count) for among, count in contests]
    contests = [(among, count) for among, count in contests if bool(among.any())]
    if not contests:
        return signals, None

    most = config.gamma if config.support == "log_ratio" else 1.0
    asked = _undecided(signals.confidence, most, contests, config)
    signals = signals.with_contrast(asked, "reference")
    if config.support == "log_ratio":
        return signals, asked
    if int(asked.sum()) <= FEW:
        return signals.with_contrast(asked, "readout"), asked
    known = torch.where(asked, most_support(signals, config), most)
    asked = _undecided(signals.confidence, known, contests, config)
    return signals.with_contrast(asked, "readout"), asked


def most_support(signals: Signals, config: GateConfig) -> Tensor:
    """What the gain can be at most, float [R, L], before the readout is known.

    The logits lie between readout and reference, and log-sum-exp is convex: (1 + w) log p ≥ log q + w log p_ref.
    """
    reference = signals.reference.clamp_min(torch.finfo(signals.reference.dtype).tiny)
    readout = signals.confidence * (signals.confidence / reference) ** config.w
    return (readout.clamp_max(1.0) * (1 + ROUNDING) - reference).clamp_min(0.0)


def _open(among: Tensor, count: Tensor) -> Tensor:
    """Rows where some of `among` will be one of the `count` readiest and others will not, bool [R]."""
    return (count > 0) & (among.sum(dim=1) > count)


def _undecided(
    confidence: Tensor, most: Tensor | float, contests: list[tuple[Tensor, Tensor]], config: GateConfig
) -> Tensor:
    """Who may be one of the `count` readiest of its row in a contest (among, count) with support of 0 up to `most`."""
    reach = config.support_lambda * most * (1 + ROUNDING)
    low, high = (confidence - reach, confidence) if config.support == "steady" else (confidence, confidence + reach)
    asked = torch.zeros_like(contests[0][0])
    for among, count in contests:
        order = low.masked_fill(~among, -torch.inf).sort(dim=1, descending=True).values
        last = order.gather(1, (count - 1).clamp(0, low.shape[1] - 1)[:, None])
        asked |= among & (high >= last)
    return asked
