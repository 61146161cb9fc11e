"""Control policies, not meant for use: each does part of what a gate does, without looking at the trajectory.

What a gate gains beyond them is due to the trajectory. They are not registered, so no table of decoders lists them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State, Wrapper
from tacg.types import Decision, Needs

if TYPE_CHECKING:
    from tacg.types import Signals


@dataclass(frozen=True)
class CarefulStart(Policy):
    """A threshold that is higher at first: for some steps of a block, or while much of the block is masked.

    By steps: `first`, then `threshold`. By the share still masked: it falls linearly from `first` to `threshold`.
    """

    name: ClassVar[str] = "careful-start"

    threshold: float = knob(0.5, "confidence to commit in the end", low=0, high=1, per_row=True)
    first: float = knob(0.95, "confidence to commit at first", low=0, high=1, per_row=True)
    by: str = knob("steps", "what makes it fall", choices=("steps", "share"))
    careful: int = knob(2, "number of careful steps in a block, by steps", low=0, per_row=True)

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """masks: int64 [rows, 1], how many the block began with."""
        return {"masks": torch.ones(rows, 1, dtype=torch.int64, device=device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The threshold of this step."""
        sure, step = signals.confidence, signals.step[:, None]
        left = signals.eligible.sum(dim=1, keepdim=True)
        masks = torch.where(step == 0, left, state["masks"])
        care = (step < self.careful).to(sure.dtype) if self.by == "steps" else left / masks.clamp(min=1)
        bar = self.threshold + (self.first - self.threshold) * care
        return Decision((sure >= bar) & signals.eligible, rank=sure), {"masks": masks}


@dataclass(frozen=True)
class HeldAtRandom(Wrapper):
    """The History Gate without history: what the base policy would commit is held back at random, at a given rate.

    As with the gate, what reaches `tau_escape` is never held back, and the ranks are the base policy's. Whether a
    position is held back is a function of the decode's seed, the step and the position.
    """

    name: ClassVar[str] = "held-at-random"

    rate: float = knob(0.5, "share of its proposals that is held back", low=0, high=1, per_row=True)
    tau_escape: float = knob(0.95, "confidence that is never held back", low=0, per_row=True)

    @property
    def needs(self) -> Needs:
        """The base policy's signals, and noise."""
        return self.base.needs | Needs("noise")

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """base: the wrapped policy's state."""
        return {"base": self.base.start(rows, width, device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The base policy's decision, thinned out."""
        below, base_state = self.base.decide(signals, state["base"])
        held = (signals.noise < self.rate) & (signals.confidence < self.tau_escape)
        return replace(below, base=below.base & ~held), {"base": base_state}


@dataclass(frozen=True)
class Outspoken(Wrapper):
    """The base policy, which records what it would commit: a gate over it hides that."""

    name: ClassVar[str] = "outspoken"

    @property
    def needs(self) -> Needs:
        """The base policy's signals."""
        return self.base.needs

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """base: the wrapped policy's state."""
        return {"base": self.base.start(rows, width, device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The base policy's decision, with `ready` among its notes."""
        below, base_state = self.base.decide(signals, state["base"])
        return replace(below, notes={**below.notes, "ready": below.base.float()}), {"base": base_state}
