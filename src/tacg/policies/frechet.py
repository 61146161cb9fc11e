"""Fréchet: the commit rule of "Fast-dLLM++", arXiv 2606.02955, 2026."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Decision

if TYPE_CHECKING:
    from tacg.types import Signals


@dataclass(frozen=True)
class Frechet(Policy):
    """Commit as many of the surest positions as can all be right at once, however they depend on each other.

    Σ_{j≤n} c_j - (n - 1) is a lower bound (Fréchet's) on the probability that the n surest are all right. The n-th is
    committed if this bound minus its own doubt 1 - c_n is above `delta`. The surest always passes.
    """

    name: ClassVar[str] = "frechet"
    frontier: ClassVar = ("delta", (-0.5, 0.0, 0.25, 0.5, 0.75, 0.9))

    delta: float = knob(0.25, "what the bound must exceed", symbol="δ", low=-1, high=1, per_row=True)

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The bound never rises along the sorted row, so the positions that pass form a prefix."""
        sure, order = signals.confidence.masked_fill(~signals.eligible, -1.0).sort(dim=1, descending=True, stable=True)
        n = torch.arange(1, sure.shape[1] + 1, device=sure.device)
        bound = sure.cumsum(dim=1) - (n - 1) - (1.0 - sure)
        passes = (bound > self.delta) | (n == 1)
        ready = torch.zeros_like(signals.eligible).scatter(1, order, passes) & signals.eligible
        return Decision(ready, rank=signals.confidence), state
