"""AHD: Zou et al., "Breaking Block Boundaries: Anchor-based History-stable Decoding for Diffusion Large Language
Models", 2026."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from tacg.knobs import knob
from tacg.policies.base import State, Wrapper
from tacg.types import Needs, Past, top

if TYPE_CHECKING:
    import torch

    from tacg.types import Decision, Signals


@dataclass(frozen=True)
class Ahd(Wrapper):
    """Decode the active block as the base policy does, and commit positions of later blocks that are already stable.

    A position is stable if Σ_τ w_τ KL(p_t || p_{t-τ}) is below `max_drift`. The sum runs over the last `window` - 1
    steps; the weights w_τ fall by exp(-λ) per step and add up to 1. A position observed less often is far from stable.
    """

    name: ClassVar[str] = "ahd"

    window: int = knob(6, "number of steps that are compared, including this one", symbol="H", low=2, high=100)
    max_drift: float = knob(
        0.01, "mean divergence below which a position of a later block is stable", symbol="ε", low=0, per_row=True
    )
    drift_lambda: float = knob(0.5, "how fast older steps count less", symbol="λ", low=0)

    @property
    def needs(self) -> Needs:
        """The base policy's needs, and the drift over the whole answer."""
        return self.base.needs | Needs("drift", past=Past(self.window - 1, self.drift_lambda), scope="answer")

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """base: the wrapped policy's state."""
        return {"base": self.base.start(rows, width, device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The base policy sees only the active block; all blocks are open."""
        assert signals.grid is not None
        assert signals.current is not None
        active = signals.eligible if signals.active is None else signals.active
        below, base_state = self.base.decide(replace(signals, eligible=active, active=None), state["base"])
        ahead = signals.eligible & ~active & (signals.drift < self.max_drift)
        # If only later blocks got something, the best position of the active block is added here, not as a fallback.
        stuck = ahead.any(dim=1, keepdim=True) & ~(below.base & active).any(dim=1, keepdim=True)
        ready = below.base | ahead | (top(below.rank, active, 1) & stuck)
        blocks = signals.grid.amax(dim=1) + 1 - signals.current
        return replace(below, base=ready, open=blocks), {"base": base_state}
