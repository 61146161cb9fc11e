"""Prophet: Li et al., "Diffusion Language Models Know the Answer Before Decoding", 2025."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import State, Wrapper
from tacg.types import Needs

if TYPE_CHECKING:
    from tacg.types import Decision, Signals

THIRD, TWO_THIRDS = 0.33, 0.67  # as the authors' code has them


@dataclass(frozen=True)
class Prophet(Wrapper):
    """Decode as the base policy does, and write all that is left at once when the answer region is clear enough.

    That is: when the gap between the two largest logits, averaged over the region, reaches 7.5 in the first third of
    the answer, 5 in the second, 2.5 in the last. The authors' region is 5 tokens behind a forced "The answer is";
    without `region_start` it is the whole answer.
    """

    name: ClassVar[str] = "prophet"

    region_start: int | None = knob(None, "first position of the answer region (none: the whole answer)", low=0)
    region_length: int = knob(5, "positions of the answer region", low=1)
    early: float = knob(7.5, "mean gap that ends the decode in its first third", symbol="τ_1", low=0, per_row=True)
    middle: float = knob(5.0, "mean gap that ends it in its second third", symbol="τ_2", low=0, per_row=True)
    late: float = knob(2.5, "mean gap that ends it in its last third", symbol="τ_3", low=0, per_row=True)

    @property
    def needs(self) -> Needs:
        """The base policy's, and the gap everywhere, committed positions included."""
        return self.base.needs | Needs("gap", scope="answer", committed=True)

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """base: the wrapped policy's state."""
        return {"base": self.base.start(rows, width, device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The base policy's decision, and whether to end."""
        assert signals.length is not None
        below, base_state = self.base.decide(signals, state["base"])
        place = torch.arange(signals.gap.shape[1], device=signals.gap.device)
        region = signals.observed
        if self.region_start is not None:
            region = region & (place >= self.region_start) & (place < self.region_start + self.region_length)
        size = region.sum(dim=1, keepdim=True)
        gap = (signals.gap * region).sum(dim=1, keepdim=True) / size.clamp(min=1)
        left = signals.left - signals.quota()  # of a decode by schedule, this is the share of its steps with this one
        progress = (1.0 - left / signals.length.clamp(min=1))[:, None]
        bar = torch.where(progress < THIRD, self.early, torch.where(progress < TWO_THIRDS, self.middle, self.late))
        finish = (gap >= bar) & (size > 0)
        return replace(below, finish=finish[:, 0]), {"base": base_state}
