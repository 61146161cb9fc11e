"""A fixed number of commits a step: MaskGIT's idea as in LLaDA (Nie et al., 2025) and Dream (Ye et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Decision, Needs, top

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Signals

_NEEDS = {
    "confidence": Needs(),
    "margin": Needs("margin"),
    "entropy": Needs("entropy"),
    "random": Needs("noise"),
}


@dataclass(frozen=True)
class Schedule(Policy):
    """Commit the best-ranked positions, as many as the step budget asks for.

    `even` spreads a block's positions over its steps, larger shares first (LLaDA). `linspace` commits the share
    1 - s/t of the masks between the times t and s of a grid from 1 to `last_time` (Dream); where it would round to
    nothing, the engine still commits one position, so that no forward is spent for nothing.
    """

    name: ClassVar[str] = "schedule"
    frontier: ClassVar = ("steps", (8, 16, 24, 32, 48, None))  # of the decode: it has no other pace

    rank_by: str = knob("confidence", "what readiness means", choices=("confidence", "margin", "entropy", "random"))
    pace: str = knob("even", "how many commits per step: LLaDA's or Dream's", choices=("even", "linspace"))
    last_time: float = knob(1e-3, "last time of the linspace grid", symbol="ε", low=0, high=1)

    @property
    def needs(self) -> Needs:
        """Only the signal that ranks."""
        return _NEEDS[self.rank_by]

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The top of the ranking, as many as the pace says."""
        rank = self._rank(signals)
        count = signals.quota() if self.pace == "even" else self._linspace(signals)
        return Decision(top(rank, signals.eligible, count), rank=rank, quota=count), state

    def _rank(self, signals: Signals) -> Tensor:
        if self.rank_by == "entropy":
            return -signals.entropy  # sure positions have little entropy
        if self.rank_by == "random":
            return signals.noise
        return signals.margin if self.rank_by == "margin" else signals.confidence

    def _linspace(self, signals: Signals) -> Tensor:
        """int64 [R]: floor(masks * (1 - s/t)); everything that is left in the last step."""
        masks = signals.eligible.sum(dim=1)
        grain = (1.0 - self.last_time) / signals.steps.double()
        t = 1.0 - signals.step * grain
        share = (masks * (grain / t)).floor().long()
        return masks.where(signals.step + 1 >= signals.steps, share)
