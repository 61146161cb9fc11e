"""Multi-block decoding: Qian et al., "d3LLM: Ultra-Fast Diffusion LLM using Pseudo-Trajectory Distillation", 2026."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tacg.knobs import knob
from tacg.policies.base import Policy, State, opened_next
from tacg.types import Decision, Needs, top

if TYPE_CHECKING:
    from tacg.types import Signals


@dataclass(frozen=True)
class D3llm(Policy):
    """Commit by an entropy threshold in several blocks at once; the next block opens early.

    Another block opens once a share `add` of the last open one is written. The surest position of all always passes,
    and so does the surest of the active block if that would otherwise get nothing. This is only the decoder: d3LLM's
    headline figures need its distilled weights.
    """

    name: ClassVar[str] = "d3llm"
    frontier: ClassVar = ("threshold", (1.2, 0.8, 0.5, 0.3, 0.1, 0.03))

    threshold: float = knob(
        0.5, "entropy up to which positions are committed, in nats", symbol="τ_H", low=0, per_row=True
    )
    add: float = knob(
        0.1, "share of the last open block that opens the next one", symbol="θ_add", low=0, high=1, per_row=True
    )

    @property
    def needs(self) -> Needs:
        """Entropies in all open blocks."""
        return Needs("entropy", scope="open")

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Apply the threshold, ensure progress in the active block, then decide whether another block opens."""
        rank = -signals.entropy
        active = signals.eligible if signals.active is None else signals.active
        ready = signals.eligible & (signals.entropy <= self.threshold) | top(rank, signals.eligible, 1)
        stuck = ~(ready & active).any(dim=1, keepdim=True)
        ready = ready | (top(rank, active, 1) & stuck)
        return Decision(ready, rank=rank, open=opened_next(signals, ready, self.add)), state
