"""EB-Sampler: Ben-Hamu et al., "Accelerated Sampling from Masked Diffusion Models via Entropy Bounded Unmasking",
2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Decision, Needs

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Signals


@dataclass(frozen=True)
class EntropyBound(Policy):
    """Commit the surest positions as long as their entropies, except the largest, add up to at most `bound`.

    That sum bounds how much the positions can depend on each other. The surest always passes.
    """

    name: ClassVar[str] = "eb"
    frontier: ClassVar = ("bound", (1.0, 0.3, 0.1, 0.03, 0.01, 0.001))

    bound: float = knob(0.01, "bound on the joint entropy, in nats", symbol="γ", low=0, per_row=True)

    @property
    def needs(self) -> Needs:
        """The entropy."""
        return Needs("entropy")

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The longest prefix of the row, sorted by entropy, that stays within the bound."""
        ready = within_budget(signals.entropy, signals.eligible, self.bound)
        return Decision(ready, rank=-signals.entropy), state


def within_budget(cost: Tensor, eligible: Tensor, bound: Tensor | float) -> Tensor:
    """bool [R, L]: the cheapest positions of each row, as long as all costs but the last sum to at most `bound`."""
    cost, order = cost.masked_fill(~eligible, torch.inf).sort(dim=1, stable=True)
    others = cost.cumsum(dim=1) - cost  # the most expensive so far is the last
    passes = (others <= bound) & cost.isfinite()
    return torch.zeros_like(eligible).scatter(1, order, passes)
