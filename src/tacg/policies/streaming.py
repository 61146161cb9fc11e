"""Xiao et al., "Streaming-dLLM: Accelerating Diffusion LLMs via Suffix Pruning and Dynamic Decoding", 2026."""

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
class Streaming(Policy):
    """Commit above a threshold that falls as the block fills, and do not compute most of the suffix.

    Only `suffix` masks after the block and the last position of the answer are computed, each at its true position.
    The threshold is τ (1 - α (1 - r)), where r is the share of masks in the block and that suffix. In a block's first
    step it is τ.

    The authors cache the prefix (`cache=prefix`) and end the answer at a block that holds an EOS, as `early_stop` does.
    In a canvas, text given after the block is kept too. Block-causal models compute no suffix, but r still counts it.
    """

    name: ClassVar[str] = "streaming"
    frontier: ClassVar = ("threshold", (0.5, 0.7, 0.8, 0.9, 0.95, 0.99))

    threshold: float = knob(0.9, "confidence to commit in an empty block", symbol="τ", low=0, high=1, per_row=True)
    alpha: float = knob(
        0.4, "how far the threshold falls with the share of masks", symbol="α", low=0, high=1, per_row=True
    )
    suffix: int = knob(96, "masks after the block that are computed", symbol="W", low=0)

    @property
    def needs(self) -> Needs:
        """Only a shorter suffix."""
        return Needs(suffix=self.suffix)

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The threshold depends on the share of masks."""
        assert signals.masked is not None
        assert signals.length is not None
        place, last = torch.arange(signals.masked.shape[1], device=signals.masked.device), signals.length[:, None] - 1
        block = signals.block
        edge = ((block <= 0) & (place <= last)).sum(dim=1, keepdim=True)
        computed = (block >= 0) & ((place < edge + self.suffix) | (place == last)) & (place <= last)
        share = (signals.masked & computed).sum(dim=1, keepdim=True) / computed.sum(dim=1, keepdim=True).clamp(min=1)
        share = torch.where(signals.step[:, None] > 0, share, 1.0)
        ready = signals.eligible & (signals.confidence >= self.threshold * (1 - self.alpha * (1 - share)))
        return Decision(ready, rank=signals.confidence), state
