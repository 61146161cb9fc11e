"""Find where temporal support can change a decision. PyTorch's operations measure it only there, for the same commits.

Reference and readout each cost a pass over the vocabulary. Support changes readiness by at most λ, so most positions
win or lose by confidence alone, and most of the others once the reference is known (`most_support`). Finding them
needs results in the middle of a step. That is cheap on a CPU but stalls a GPU, so on a GPU the scan measures
everything in one pass and this file does nothing. The native kernel of a CPU does so, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tacg.types import but_not

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.gate import GateConfig
    from tacg.types import Signals

ROUNDING = 1e-5  # relative; far above the actual rounding error
FEW = 4  # up to this many readouts are simply measured; narrowing them down further would take longer


def where_support_matters(
    signals: Signals, base: Tensor, candidates: Tensor, budget: Tensor | int, quota: Tensor | None, config: GateConfig
) -> tuple[Signals, Tensor | None]:
    """The signals with the contrast measured where support needs it, and these positions, bool [R, L] (None: nowhere).

    candidates, budget  the candidates for promotion, and how many of them are promoted: int64 [R], or one int for all
    quota               int64 [R], commits that each row should reach by readiness; None: no quota
    """
    if signals.measure is None:
        return signals, signals.observed if "reference" in signals.measured else None
    if config.max_support is not None:
        return signals.with_contrast(signals.observed), signals.observed
    contests, alone = _contests(signals, base, candidates, budget, quota) if len(base) else ([], True)
    if not contests:
        return signals, None

    most = config.gamma if config.support == "log_ratio" else 1.0
    asked = _undecided(signals.confidence, most, contests, config)
    if alone:  # it does not matter which of the winners is readier
        asked &= _open(asked, contests[0][1])[:, None]
    count = int(asked.sum())
    if not count:
        return signals, None
    if config.support == "log_ratio":
        return signals.with_contrast(asked, "reference"), asked
    if count <= FEW:
        return signals.with_contrast(asked), asked
    signals = signals.with_contrast(asked, "reference")
    known = torch.where(asked, most_support(signals, config), most)
    asked = asked & _undecided(signals.confidence, known, contests, config)
    return signals.with_contrast(asked, "readout"), asked


def most_support(signals: Signals, config: GateConfig) -> Tensor:
    """Upper bound of the gain, float [R, L], before the readout is known.

    The logits lie between readout and reference, and log-sum-exp is convex: (1 + w) log p ≥ log q + w log p_ref.
    """
    reference = signals.reference.clamp_min(torch.finfo(signals.reference.dtype).tiny)
    readout = signals.confidence * (signals.confidence / reference) ** config.w
    return (readout.clamp_max(1.0) * (1 + ROUNDING) - reference).clamp_min(0.0)


def _contests(
    signals: Signals, base: Tensor, candidates: Tensor, budget: Tensor | int, quota: Tensor | None
) -> tuple[list[tuple[Tensor, Tensor]], bool]:
    """Where more positions compete than can win: (among, count), bool [R, L] and int64 [R]. Most often nowhere.

    Also whether they compete only for promotion or only for the quota; otherwise who is promoted and who fills up
    depends on who is readier. Whether there is any contest is asked first, because the answer takes two operations.
    """
    rivals = candidates.sum(dim=1)
    left = None if quota is None else quota - base.sum(dim=1)
    short, most = left is not None and max(left.tolist()) > 0, max(rivals.tolist())
    crowded = most > (0 if isinstance(budget, torch.Tensor) else budget)
    if not short and not crowded:
        return [], True
    if not isinstance(budget, torch.Tensor):
        budget = torch.full_like(rivals, budget)
    contests = [(candidates, budget)] if crowded else []
    if left is not None and short:
        late = left > torch.minimum(rivals, budget)
        contests.append((but_not(signals.eligible, base) & late[:, None], left))
    contests = [(among & _open(among, count)[:, None], count) for among, count in contests]
    return [(among, count) for among, count in contests if bool(among.any())], not (short and most)


def _open(among: Tensor, count: Tensor) -> Tensor:
    """bool [R]: rows where more than `count` positions of `among` compete, so that some win and others do not."""
    return (count > 0) & (among.sum(dim=1) > count)


def _undecided(
    confidence: Tensor, most: Tensor | float, contests: list[tuple[Tensor, Tensor]], config: GateConfig
) -> Tensor:
    """Positions that may be among the `count` most ready ones of `among`, with support from 0 to `most`."""
    reach = config.support_lambda * most * (1 + ROUNDING)
    low, high = (confidence - reach, confidence) if config.support == "steady" else (confidence, confidence + reach)
    asked = torch.zeros_like(contests[0][0])
    for among, count in contests:
        order = low.masked_fill(~among, -torch.inf).sort(dim=1, descending=True).values
        last = order.gather(1, (count - 1).clamp(0, low.shape[1] - 1)[:, None])
        asked |= among & (high >= last)
    return asked
