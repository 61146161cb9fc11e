"""Attn-Sampler: Zhou et al., "Attention-Based Sampler for Diffusion Language Models", arXiv 2604.08564, 2026."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Decision, Needs

if TYPE_CHECKING:
    from tacg.types import Signals


@dataclass(frozen=True)
class Attention(Policy):
    """Commit first the positions that the rest of the block attends to most. Influence is the attention column's sum.

    A sure position is committed if its influence is above that of every unsure one, so that nothing is written before
    a position on which it may depend. If no position is unsure, all are committed (the paper does not say). If none
    passes, the most influential mask is committed, sure or not; with `sequential`, that is the whole rule.
    """

    name: ClassVar[str] = "attention"
    frontier: ClassVar = ("threshold", (0.5, 0.7, 0.8, 0.9, 0.95, 0.99))

    threshold: float = knob(0.9, "confidence from which a position is sure", symbol="τ", low=0, high=1, per_row=True)
    layers: float = knob(1.0, "share of the layers whose attention counts, the last ones", low=0.01, high=1)
    sequential: bool = knob(False, "one position per step, by influence alone")

    @property
    def needs(self) -> Needs:
        """Attention within the block."""
        return Needs(attention=self.layers)

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Positions that are sure and more influential than every unsure one."""
        assert signals.attention is not None
        influence = signals.attention.sum(dim=1)
        sure = signals.eligible & (signals.confidence >= self.threshold)
        bar = influence.masked_fill(sure | ~signals.eligible, -torch.inf).amax(dim=1, keepdim=True)
        ready = torch.zeros_like(sure) if self.sequential else sure & (influence > bar)
        return Decision(ready, rank=influence, notes={"influence": influence}), state
