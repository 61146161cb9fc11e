"""WINO: Hong et al., "Wide-In, Narrow-Out: Revokable Decoding for Efficient and Effective DLLMs", 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Decision, Needs, top

if TYPE_CHECKING:
    from tacg.types import Signals

FIRST = 30  # what counts as the last step's drafts in a block's first step


@dataclass(frozen=True)
class Wino(Policy):
    """Draft generously, then re-mask what the model would not write again.

    Drafts are what is surer than `threshold`: at most 0.7 of the masks, but 5 in any case and never more than 20.
    Beside the block stands its shadow, a mask for each position, which sees all but the token in its own place.
    Earlier tokens to which it gives less than `keep` are re-masked, fewer than were drafted in the last step, and none
    in a step that drafts a single position.

    The shadow is computed, so it counts in `positions`. Caches that are not exact are refused: what they hold of the
    block is out of date when a token is taken back. Block-causal models keep theirs; a shadow sees what its block does.
    """

    name: ClassVar[str] = "wino"
    frontier: ClassVar = ("threshold", (0.4, 0.5, 0.6, 0.7, 0.8, 0.9))

    threshold: float = knob(0.6, "confidence above which drafts are made", symbol="τ₁", low=0, high=1, per_row=True)
    keep: float = knob(0.9, "probability below which tokens are re-masked", symbol="τ₂", low=0, high=1, per_row=True)

    @property
    def revises(self) -> bool:
        """It re-masks."""
        return True

    @property
    def needs(self) -> Needs:
        """What the shadow says of committed tokens."""
        return Needs("recheck")

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """drafts int64 [rows]: of the last step."""
        return {"drafts": torch.full((rows,), FIRST, device=device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Draft by confidence, verify by the shadow."""
        assert signals.masked is not None
        masks = signals.eligible.sum(dim=1)
        most = (masks * 7 // 10).clamp(min=5, max=20)
        drafts = top(signals.confidence, signals.eligible & (signals.confidence > self.threshold), most)
        count = drafts.sum(dim=1)

        before = torch.where(signals.step > 0, state["drafts"], FIRST)
        doubted = signals.observed & ~signals.masked & (signals.recheck < self.keep)
        remask = top(-signals.recheck, doubted, torch.where(count > 1, before - 1, 0))
        return Decision(drafts, rank=signals.confidence, remask=remask), {"drafts": count.clamp(min=1)}
