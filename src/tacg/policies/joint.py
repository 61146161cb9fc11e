"""JointThreshold: the decoder of "LLaDA2.1: Speeding Up Text Diffusion via Token Editing", 2026, as in SGLang."""

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
class JointThreshold(Policy):
    """Commit masks above one threshold, and replace committed tokens of the block above another.

    A full block is read again until nothing in it changes, at most `post_edit_steps` times and within the block's
    steps. For models that are trained to edit. The authors' penalty on repeating the left neighbour is left out: it is
    off by default and works on logits.
    """

    name: ClassVar[str] = "joint"
    frontier: ClassVar = ("threshold", (0.3, 0.5, 0.7, 0.9, 0.95, 0.99))

    threshold: float = knob(0.5, "what a mask's confidence must exceed", symbol="θ", low=0, high=1, per_row=True)
    edit_threshold: float = knob(
        0.0, "what the confidence of another token must exceed to replace a committed one", symbol="θ_edit", low=0,
        high=1, per_row=True,
    )  # fmt: skip
    post_edit_steps: int = knob(16, "maximum steps in a full block (SGLang: max_post_edit_steps)", low=0, per_row=True)

    @property
    def revises(self) -> bool:
        """It edits."""
        return True

    @property
    def needs(self) -> Needs:
        """Committed positions as well."""
        return Needs(committed=True)

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """full: int64 [rows], steps taken since the block was full."""
        return {"full": torch.zeros(rows, dtype=torch.int64, device=device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Fill masks, edit tokens, and decide whether to read the block again."""
        assert signals.masked is not None
        sure = signals.confidence
        ready = signals.eligible & (sure > self.threshold)
        other = signals.observed & ~signals.masked & (signals.token != signals.written)
        full = torch.where(signals.eligible.any(dim=1), 0, state["full"] + 1)
        stay = (full[:, None] < self.post_edit_steps).squeeze(1)
        return Decision(ready, rank=sure, edit=other & (sure > self.edit_threshold), stay=stay), {"full": full}
