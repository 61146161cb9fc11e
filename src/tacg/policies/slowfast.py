"""SlowFast: Wei et al., "Accelerating Diffusion Large Language Models with SlowFast Sampling: The Three Golden
Principles", 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Decision, top

if TYPE_CHECKING:
    from tacg.types import Signals


@dataclass(frozen=True)
class SlowFast(Policy):
    """Decode in cycles: watch for a few steps how far the model is roughly sure, then fill that stretch.

    A cycle begins where the last one ended. Each of its `k` slow steps estimates its end, the last position that
    reaches `low`. Two consecutive estimates that differ by at most one settle the end; otherwise it is the mean of the
    last two. Slow steps commit anywhere in the block, fast ones only before the end: all positions above `threshold` if
    there are at least two, otherwise the surest. From the second fast step on, forwards leave out what follows the end.
    """

    name: ClassVar[str] = "slowfast"
    frontier: ClassVar = ("threshold", (0.5, 0.7, 0.8, 0.9, 0.95, 0.99))

    threshold: float = knob(0.9, "confidence to commit", symbol="τ_high", low=0, high=1, per_row=True)
    low: float = knob(0.3, "confidence that marks the end of a cycle", symbol="τ_min", low=0, high=1, per_row=True)
    k: int = knob(6, "slow steps of a cycle", symbol="K", low=1, per_row=True)

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """The cycle of each row, [rows]: int64 its `first` position, its `end`, the last estimate (`guess`) of the end,
        and its number of `slow` steps; bool whether the end is `settled`."""
        number = torch.zeros(rows, dtype=torch.int64, device=device)
        return {"first": number, "end": number, "guess": number, "slow": number, "settled": number.bool()}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Find the cycle, estimate its end, and commit within it."""
        sure, masks = signals.confidence, signals.eligible
        place = torch.arange(sure.shape[1], device=sure.device)
        first, end, guess, slow, settled = (
            state[name][:, None] for name in ("first", "end", "guess", "slow", "settled")
        )
        over = (slow >= self.k) & ~(masks & (place < end)).any(dim=1, keepdim=True)
        begins = (signals.step == 0)[:, None]
        leftmost = torch.where(masks, place, sure.shape[1]).amin(dim=1, keepdim=True)
        first = torch.where(begins, leftmost, torch.where(over, end, first))
        slow = torch.where(begins | over, 0, slow)

        fast = slow >= self.k
        reached = torch.where(masks & (sure >= self.low), place, first).amax(dim=1, keepdim=True) + 1
        close = (reached - guess).abs() <= 1
        known = settled & (slow > 0)
        mean = torch.where(close, reached, (reached + guess) // 2)
        end = torch.where(fast | known, end, torch.where(slow == 0, reached, mean))
        settled = known | close & (slow > 0)

        within = masks & (~fast | (place < end))
        high = within & (sure >= self.threshold)
        several = high.sum(dim=1, keepdim=True) > 1
        ready = torch.where(several, high, top(sure, within, 1))
        cycle = (place >= first) & (place < end)
        after = {"first": first, "end": end, "guess": reached, "slow": slow + ~fast, "settled": settled}
        notes = {"cycle": cycle.to(sure.dtype)}
        reach = None if signals.length is None else torch.where(fast[:, 0], end[:, 0], signals.length)
        return Decision(ready, rank=sure, notes=notes, reach=reach), {name: each[:, 0] for name, each in after.items()}
