"""Confidence threshold and factor: Wu et al., "Fast-dLLM: Training-free Acceleration of Diffusion LLM", 2025."""

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
class Confidence(Policy):
    """Commit every proposal that is sure enough.

    With a `factor` f, the bar depends on the number of commits: the n-th surest position is committed if
    (n + 1)(1 - c_n) <= f, so a single position may be less sure than ten. The surest always passes.
    """

    name: ClassVar[str] = "confidence"
    frontier: ClassVar = ("threshold", (0.5, 0.7, 0.8, 0.9, 0.95, 0.99))

    threshold: float = knob(0.9, "confidence to commit", symbol="τ", low=0, high=1, per_row=True)
    strict: bool = knob(False, "commit above the threshold only, not at it")
    factor: float | None = knob(
        None, "replaces the threshold by Fast-dLLM's factor rule", symbol="f", low=0, per_row=True
    )

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Threshold, or factor when it is set."""
        sure = signals.confidence
        if self.factor is not None:
            ready = self._prefix(sure, signals.eligible, self.factor)
        else:
            ready = sure > self.threshold if self.strict else sure >= self.threshold
        return Decision(ready & signals.eligible, rank=sure), state

    @staticmethod
    def _prefix(sure: Tensor, eligible: Tensor, factor: float | Tensor) -> Tensor:
        """(n + 1)(1 - c_n) never falls along the sorted row, so the positions that pass form a prefix."""
        ordered, order = sure.masked_fill(~eligible, -1.0).sort(dim=1, descending=True, stable=True)
        n = torch.arange(1, sure.shape[1] + 1, device=sure.device)
        passes = ((n + 1) * (1 - ordered) <= factor) | (n == 1)
        return torch.zeros_like(eligible).scatter_(1, order, passes)
