"""CreditDecoding: Wang et al., "CreditDecoding: Accelerating Parallel Decoding in Diffusion Large Language Models with
Trace Credits", 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Credit, Decision, Needs

if TYPE_CHECKING:
    from tacg.types import Signals


@dataclass(frozen=True)
class CreditDecoding(Policy):
    """A threshold on logits with memory: tokens that keep ranking first earn credit, which is added to their logits.

    Unlike a gate this changes *which* token is proposed: weight · log(1 + credit) is added before anything is read.
    """

    name: ClassVar[str] = "credit"
    frontier: ClassVar = ("threshold", (0.5, 0.7, 0.8, 0.9, 0.95, 0.99))

    threshold: float = knob(0.9, "confidence to commit", symbol="τ", low=0, high=1, per_row=True)
    weight: float = knob(0.7, "weight of the credit in the logits", symbol="α", low=0)
    decay: float = knob(0.8, "share of the credit that is kept from step to step", symbol="β", low=0, high=1)
    power: float = knob(0.2, "exponent of the probability that is earned", symbol="γ", low=0)

    @property
    def needs(self) -> Needs:
        """The credit, kept and added by the scan."""
        return Needs(credit=Credit(self.weight, self.decay, self.power))

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Commit positions whose confidence reaches the threshold."""
        return Decision((signals.confidence >= self.threshold) & signals.eligible, rank=signals.confidence), state
