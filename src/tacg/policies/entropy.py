"""Entropy threshold: the decoding rule of Chen et al., "dParallel: Learnable Parallel Decoding for dLLMs", 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Decision, Needs

if TYPE_CHECKING:
    from tacg.types import Signals


@dataclass(frozen=True)
class EntropyThreshold(Policy):
    """Commit every proposal whose posterior has low entropy.

    This is only the rule: dParallel's headline figures need its distilled weights.
    """

    name: ClassVar[str] = "entropy"
    frontier: ClassVar = ("threshold", (1.2, 0.8, 0.5, 0.3, 0.1, 0.03))

    threshold: float = knob(
        0.5, "entropy up to which positions are committed, in nats", symbol="τ_H", low=0, per_row=True
    )

    @property
    def needs(self) -> Needs:
        """The entropy."""
        return Needs("entropy")

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Apply the threshold; lower entropy ranks first."""
        return Decision((signals.entropy <= self.threshold) & signals.eligible, rank=-signals.entropy), state
