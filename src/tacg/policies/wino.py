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

FIRST = 30  # assumed number of previous drafts in a block's first step


@dataclass(frozen=True)
class Wino(Policy):
    """Draft generously, then re-mask what the model would not write again.

    Drafts are positions surer than `threshold`: at most 0.7 of the masks, but at least 5 and at most 20 are allowed.
    Next to the block, its shadow is computed: one mask per position, which sees everything except the token at its own
    position. Earlier tokens to which it gives less than `keep` are re-masked: fewer than were drafted in the last step,
    and none in a step that drafts at most one position.

    The shadow is computed, so it counts in `positions`. Inexact caches are refused, because their content is out of
    date when a token is re-masked. Block-causal models keep their exact cache: a shadow sees what its block sees.
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
        """The shadow's probability of committed tokens."""
        return Needs("recheck")

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """drafts int64 [rows]: the number of drafts in the last step."""
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
