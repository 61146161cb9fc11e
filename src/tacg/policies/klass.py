"""KLASS: Kim et al., "KLASS: KL-Guided Fast Inference in Masked Diffusion Models", 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State, dreams_pick, fresh
from tacg.types import Decision, Needs

if TYPE_CHECKING:
    from tacg.types import Signals


@dataclass(frozen=True)
class Klass(Policy):
    """Commit positions that are sure and stable: the last `history` divergences from step to step are all small.

    A first observation has no predecessor. Its divergence counts as about 27.6 nats minus the entropy, which is stable
    only if `kl_threshold` is so large that the test is off. Nothing is accepted in a block's first `history - 1` steps.
    """

    name: ClassVar[str] = "klass"
    frontier: ClassVar = ("threshold", (0.5, 0.7, 0.8, 0.9, 0.95, 0.99))

    threshold: float = knob(0.9, "confidence to commit", symbol="τ", low=0, high=1, per_row=True)
    kl_threshold: float = knob(0.01, "divergence below which a position is stable", symbol="ε_KL", low=0, per_row=True)
    history: int = knob(2, "steps that must all be stable", symbol="n", low=1, high=100)
    strict: bool = knob(True, "commit above the threshold only, not at it")
    pick: str = knob(
        "surest",
        "what to commit if nothing is ready: the surest position, or the one that Dream's code picks",
        choices=("surest", "dream"),
    )

    @property
    def needs(self) -> Needs:
        """The divergence from the previous step, and the signal that the fallback ranks by."""
        return Needs("kl", "others" if self.pick == "surest" else "sharp")

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """recent: float [rows, width, history], the last divergences, newest last."""
        return {"recent": torch.full((rows, width, self.history), torch.inf, device=device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Stable and sure."""
        recent = fresh(signals, state["recent"], torch.inf)
        recent = torch.cat([recent[..., 1:], signals.kl[..., None].to(recent.dtype)], dim=-1)
        largest = recent.amax(dim=-1)
        stable = (largest < self.kl_threshold) & (signals.step >= self.history - 1)[:, None]
        sure = signals.confidence > self.threshold if self.strict else signals.confidence >= self.threshold
        rank = -signals.others if self.pick == "surest" else dreams_pick(signals)
        decision = Decision(stable & sure & signals.eligible, rank=rank)
        return decision, {"recent": recent}
