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
    """Commit what is surer than the average commit so far, then take back what has lost most confidence since.

    At least `n` positions are committed per step; of F commits, F / 8 (at least n / 2, at most F - 1) of the older ones
    are re-masked, those whose confidence fell most since the last step.
    """

    name: ClassVar[str] = "saber"
    frontier: ClassVar = ("n", (8, 6, 4, 3, 2, 1))

    n: int = knob(2, "commits per step at least", symbol="n", low=1)
    share: int = knob(8, "one re-mask for so many commits", symbol="μ", low=1)

    @property
    def revises(self) -> bool:
        """It re-masks."""
        return True

    @property
    def needs(self) -> Needs:
        """Committed positions, too."""
        return Needs(committed=True)

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """total float and count int64 [rows]: of the confidences at commit; before float [rows, width]."""
        count = torch.zeros(rows, dtype=torch.int64, device=device)
        before = torch.zeros(rows, width, dtype=torch.float64, device=device)
        return {"total": count.double(), "count": count, "before": before}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Accept by the running mean; re-mask by the drop in confidence."""
        assert signals.masked is not None
        sure = signals.confidence.double()
        mean = torch.where(state["count"] > 0, state["total"] / state["count"].clamp(min=1), 1.0)
        above = signals.eligible & (sure > mean[:, None])
        enough = above.sum(dim=1) >= self.n
        ready = torch.where(enough[:, None], above, top(sure, signals.eligible, self.n))
        count = ready.sum(dim=1)

        drop = (sure - state["before"]).masked_fill(signals.first, 0.0)
        back = (-(-count // self.share)).clamp(min=self.n // 2)
        back = torch.minimum(back, count - 1).clamp(min=0)
        remask = top(-drop, signals.observed & ~signals.masked, back)
        state = {
            "total": state["total"] + (sure * ready).sum(dim=1), "count": state["count"] + count, "before": sure,
        }  # fmt: skip
        return Decision(ready, rank=signals.confidence, remask=remask), state
