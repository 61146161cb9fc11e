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

THIRD, TWO_THIRDS = 0.33, 0.67  # as in the authors' code


@dataclass(frozen=True)
class Prophet(Wrapper):
    """Decode as the base policy does, and write everything that is left at once when the answer region is clear enough.

    That is when the gap between the two largest logits, averaged over the region, reaches 7.5 in the first third of
    the answer, 5 in the second, or 2.5 in the last. The authors' region is 5 tokens after a forced "The answer is",
    which a canvas can provide. Without `region_start` there is no region, and decoding never ends early: being sure of
    most of an answer says little about the one number in it that counts.
    """

    name: ClassVar[str] = "prophet"

    region_start: int | None = knob(
        None, "first position of the answer region (none: never end early)", low=0, per_row=True
    )
    region_length: int = knob(5, "positions of the answer region", low=1, per_row=True)
    early: float = knob(7.5, "mean gap that ends the decode in its first third", symbol="τ_1", low=0, per_row=True)
    middle: float = knob(5.0, "mean gap that ends it in its second third", symbol="τ_2", low=0, per_row=True)
    late: float = knob(2.5, "mean gap that ends it in its last third", symbol="τ_3", low=0, per_row=True)

    @property
    def needs(self) -> Needs:
        """The base policy's needs; with a region also the gap everywhere, including committed positions."""
        watched = Needs() if self.region_start is None else Needs("gap", scope="answer", committed=True)
        return self.base.needs | watched

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """base: the wrapped policy's state."""
        return {"base": self.base.start(rows, width, device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The base policy's decision, and whether to end now."""
        below, base_state = self.base.decide(signals, state["base"])
        if self.region_start is None:
            return below, {"base": base_state}
        assert signals.length is not None
        place = torch.arange(signals.gap.shape[1], device=signals.gap.device)
        region = signals.observed & (place >= self.region_start) & (place < self.region_start + self.region_length)
        size = region.sum(dim=1, keepdim=True)
        gap = (signals.gap * region).sum(dim=1, keepdim=True) / size.clamp(min=1)
        left = signals.left - signals.quota()  # by a fixed schedule, progress is the share of steps up to this one
        progress = (1.0 - left / signals.length.clamp(min=1))[:, None]
        bar = torch.where(progress < THIRD, self.early, torch.where(progress < TWO_THIRDS, self.middle, self.late))
        finish = (gap >= bar) & (size > 0)
        return replace(below, finish=finish[:, 0]), {"base": base_state}
