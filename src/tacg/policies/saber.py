"""Saber: Dong et al., "Saber: An Efficient Sampling with Adaptive Acceleration and Backtracking Enhanced Remasking for
Diffusion Language Model", 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Decision, Needs, top

if TYPE_CHECKING:
    from tacg.types import Signals


@dataclass(frozen=True)
class Saber(Policy):
    """Commit what is surer than the average commit so far, then re-mask what has lost most confidence since.

    At least `n` positions are chosen per step. For F chosen positions, F / 8 (at least n / 2, at most F - 1) written
    positions are re-masked: those whose confidence fell most since the last step, new ones included.
    """

    name: ClassVar[str] = "saber"
    frontier: ClassVar = ("n", (8, 6, 4, 3, 2, 1))

    n: int = knob(2, "commits per step at least", symbol="n", low=1)
    share: int = knob(8, "commits per re-masked position", symbol="μ", low=1)

    @property
    def revises(self) -> bool:
        """It re-masks."""
        return True

    @property
    def needs(self) -> Needs:
        """Committed positions as well."""
        return Needs(committed=True)

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """at_commit float [rows, width]: the confidence when each was last chosen; before: that of the last step.

        Both are 0 where there was none.
        """
        board = torch.zeros(rows, width, dtype=torch.float64, device=device)
        return {"at_commit": board, "before": board.clone()}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Choose by the running mean; re-mask by the drop in confidence."""
        assert signals.masked is not None
        sure, chosen_once = signals.confidence.double(), state["at_commit"] > 0
        count = chosen_once.sum(dim=1)
        mean = torch.where(count > 0, state["at_commit"].sum(dim=1) / count.clamp(min=1), 1.0)
        above = signals.eligible & (sure > mean[:, None])
        enough = above.sum(dim=1) >= self.n
        ready = torch.where(enough[:, None], above, top(sure, signals.eligible, self.n))

        full = ~(signals.eligible & ~ready).any(dim=1)
        size = ready.sum(dim=1)
        back = torch.minimum((-(-size // self.share)).clamp(min=self.n // 2), size - 1).clamp(min=0)
        drop = sure - state["before"].masked_fill(signals.first, 0.0)
        written = signals.observed & (ready | ~signals.masked)
        back = top(-drop, written, back.masked_fill(full, 0))
        state = {"at_commit": torch.where(ready, sure, state["at_commit"]), "before": sure}
        return Decision(ready & ~back, rank=signals.confidence, remask=back & ~signals.masked), state
