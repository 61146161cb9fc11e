"""A fixed number of commits per step: MaskGIT's idea as in LLaDA (Nie et al., 2025) and Dream (Ye et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Decision, Needs, top

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Signals

# The signals needed for each ranking.
_NEEDS = {
    "confidence": Needs(),
    "margin": Needs("margin"),
    "entropy": Needs("entropy"),
    "random": Needs("noise"),
}


@dataclass(frozen=True)
class Schedule(Policy):
    """Commit the best-ranked positions, as many as the step budget requires.

    `even` spreads a block's positions over its steps, larger shares first (LLaDA). `linspace` commits the share
    1 - s/t of the masks between the times t and s of a grid from 1 to `last_time` (Dream). If that rounds to 0, the
    engine still commits one position, so that no forward is wasted. With `independent`, each mask is committed with
    that share as its probability (Dream's `origin`).

    With a `rank_temperature` T the ranking is random: positions are drawn without replacement, with probabilities
    ∝ exp(readiness / T) (Dream's `alg_temp`).
    """

    name: ClassVar[str] = "schedule"
    frontier: ClassVar = ("steps", (8, 16, 24, 32, 48, None))  # the decode's setting; this policy has no other

    rank_by: str = knob("confidence", "what readiness means", choices=("confidence", "margin", "entropy", "random"))
    rank_temperature: float = knob(0.0, "randomness of the ranking (0: none)", symbol="T", low=0)
    pace: str = knob(
        "even", "how many commits per step: LLaDA's or Dream's", choices=("even", "linspace", "independent")
    )
    last_time: float = knob(1e-3, "last time of the linspace grid", symbol="ε", low=0, high=1)

    @property
    def needs(self) -> Needs:
        """Only the signal that ranks, and noise if the policy samples."""
        drawn = self.rank_temperature > 0 or self.pace == "independent"
        return _NEEDS[self.rank_by] | Needs("noise") if drawn else _NEEDS[self.rank_by]

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The best-ranked positions, as many as the pace allows."""
        rank = self._rank(signals)
        if self.rank_temperature > 0:  # taking the k largest with Gumbel noise is sampling k without replacement
            rank = rank / self.rank_temperature - torch.log(-torch.log(signals.noise))
        if self.pace == "independent":
            ready = signals.eligible & (signals.noise < self._share(signals)[:, None])
            return Decision(ready, rank=rank, quota=torch.ones_like(signals.step)), state
        count = signals.quota() if self.pace == "even" else self._linspace(signals)
        return Decision(top(rank, signals.eligible, count), rank=rank, quota=count), state

    def _rank(self, signals: Signals) -> Tensor:
        if self.rank_by == "entropy":
            return -signals.entropy  # sure positions have low entropy
        if self.rank_by == "random":
            return signals.noise
        return signals.margin if self.rank_by == "margin" else signals.confidence

    def _linspace(self, signals: Signals) -> Tensor:
        """int64 [R]: floor(masks * (1 - s/t)); all remaining masks in the last step."""
        return (signals.eligible.sum(dim=1) * self._share(signals)).floor().long()

    def _share(self, signals: Signals) -> Tensor:
        """float64 [R]: 1 - s/t; 1 in the last step."""
        grain = (1.0 - self.last_time) / signals.steps.double()
        share = grain / (1.0 - signals.step * grain)
        return share.masked_fill(signals.step + 1 >= signals.steps, 1.0)
