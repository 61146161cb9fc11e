"""SchED: Mohamed et al., "Fast-Decoding Diffusion Language Models via Progress-Aware Confidence Schedules", 2025."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import pi
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import State, Wrapper, fresh
from tacg.types import Needs

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Decision, Signals


@dataclass(frozen=True)
class Sched(Wrapper):
    """Decode as the base policy does, and write everything that is left at once when the answer is clear enough.

    That is when the gap between the two largest logits, averaged over all masks of the answer, reaches a bar that
    falls from `high` to `low` as the answer is written. Progress is the share of the answer that is written. With the
    authors' fixed number of commits per step, this equals their share of steps.
    """

    name: ClassVar[str] = "sched"

    shape: str = knob("cosine", "how the bar falls", choices=("linear", "cosine", "exponential"))
    high: float = knob(7.5, "mean gap that ends the decode at its beginning", symbol="τ_high", low=0, per_row=True)
    low: float = knob(2.5, "mean gap that ends it at its end", symbol="τ_low", low=0, per_row=True)
    curvature: float = knob(4.0, "how fast an exponential bar falls", symbol="k", low=0, per_row=True)
    max_change: float | None = knob(
        0.0, "share of proposals that may differ from the last step's, as released (none, as in the paper: all)",
        low=0, high=1, per_row=True,
    )  # fmt: skip

    @property
    def needs(self) -> Needs:
        """The base policy's needs, and the gap at every mask."""
        return self.base.needs | Needs("gap", scope="answer")

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """tokens: int64 [rows, width], the last proposals; base: the wrapped policy's state."""
        tokens = torch.zeros(rows, width, dtype=torch.int64, device=device)
        return {"tokens": tokens, "base": self.base.start(rows, width, device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The base policy's decision, and whether to end now."""
        assert signals.length is not None
        assert signals.masked is not None
        below, base_state = self.base.decide(signals, state["base"])
        masks = signals.masked & signals.observed
        size = masks.sum(dim=1, keepdim=True)
        gap = (signals.gap * masks).sum(dim=1, keepdim=True) / size.clamp(min=1)
        finish = (gap >= self._bar((1.0 - signals.left / signals.length.clamp(min=1))[:, None])) & (size > 0)
        if self.max_change is not None:
            changed = masks & (signals.token != fresh(signals, state["tokens"], -1))
            finish = finish & (changed.sum(dim=1, keepdim=True) <= self.max_change * size)
        return replace(below, finish=finish[:, 0]), {"tokens": signals.token, "base": base_state}

    def _bar(self, progress: Tensor) -> Tensor:
        """The mean gap that ends the decode now, float [R, 1]."""
        if self.shape == "linear":
            share = 1.0 - progress
        elif self.shape == "cosine":
            share = (1.0 + torch.cos(pi * progress)) / 2
        else:
            share = torch.exp(-self.curvature * progress)
        return self.low + (self.high - self.low) * share
