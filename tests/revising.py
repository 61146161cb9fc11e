"""Policies that revise what they wrote, for tests of code that must handle them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tacg.knobs import knob
from tacg.policies import Policy, State
from tacg.types import Decision, Needs, Signals, top

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Reviser(Policy):
    """Commits `pace` tokens per step; masks up to `remasks` of the committed ones again, each at most once; and writes
    whatever the model says instead of a committed token where that differs, if it `edits`.
    """

    name = "reviser"
    pace: int = knob(3, "commits per step", low=1)
    remasks: int = knob(1, "re-masks per step", low=0)
    edits: bool = knob(False, "whether committed tokens are replaced")

    @property
    def revises(self) -> bool:
        return True

    @property
    def needs(self) -> Needs:
        return Needs(committed=True)

    def start(self, rows: int, width: int, device: torch.device) -> State:
        return {"again": torch.zeros(rows, width, dtype=torch.bool, device=device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        assert signals.masked is not None
        assert signals.written is not None
        committed = signals.observed & ~signals.masked
        again: Tensor = state["again"] & ~signals.first
        base = top(signals.confidence, signals.eligible, self.pace)
        remask = top(-signals.confidence, committed & ~again, self.remasks)
        edit = committed & (signals.token != signals.written) & torch.tensor(self.edits)
        return Decision(base, signals.confidence, remask=remask, edit=edit & ~remask), {"again": again | remask}
