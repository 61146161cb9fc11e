"""LocalLeap: Kong et al., "Accelerating Diffusion LLM Inference via Local Determinism Propagation", 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Decision

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Signals


@dataclass(frozen=True)
class LocalLeap(Policy):
    """Commit every anchor, and near anchors everything above a lower threshold: tokens near a sure one are settled too.

    Anchors are found wherever masks are observed; with observe="sequence" also beyond the edge of the block.
    """

    name: ClassVar[str] = "localleap"
    frontier: ClassVar = ("relaxed", (0.3, 0.5, 0.65, 0.75, 0.85, 0.9))

    threshold: float = knob(0.9, "confidence of an anchor", symbol="κ", low=0, high=1, per_row=True)
    relaxed: float = knob(0.75, "confidence to commit near an anchor", symbol="τ", low=0, high=1, per_row=True)
    radius: int = knob(4, "positions to either side that count as near", symbol="W", low=0, per_row=True)

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Anchors, and their neighbours above the lower threshold."""
        sure = signals.confidence
        anchors = signals.observed & (sure >= self.threshold)
        near = _distance(anchors) <= self.radius
        ready = signals.eligible & (anchors | near & (sure >= self.relaxed))
        return Decision(ready, rank=sure), state


def _distance(to: Tensor) -> Tensor:
    """int64 [R, L]: distance from each position to the nearest in `to`, bool [R, L]; far above L if there is none."""
    far = 1 << 40
    place = torch.arange(to.shape[1], device=to.device)
    before = torch.where(to, place, -far).cummax(dim=1).values
    behind = torch.where(to, place, far).flip(1).cummin(dim=1).values.flip(1)
    return torch.minimum(place - before, behind - place)
