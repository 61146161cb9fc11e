"""From what a policy wants to what is committed: never nothing, and no more steps than there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tacg.types import Reason, top

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Decision, Signals

REASONS = [reason.name.lower() for reason in Reason]


def reasons(signals: Signals, decision: Decision) -> Tensor:
    """What is committed now and why, int64 [R, W] of `Reason`: 0 where nothing is.

    Beyond what was decided, as much by rank as the step budget asks for: at least one in every row that has masks.
    """
    base = decision.base & signals.eligible
    taken = base if decision.extra is None else base | (decision.extra & signals.eligible)
    goal = signals.owed() if decision.pace is None else decision.pace.clamp(min=1)
    everything = signals.eligible.shape[1]
    goal = torch.where(signals.step + 1 >= signals.steps, everything, goal)  # the last step takes all that is left
    late = top(decision.rank, signals.eligible & ~taken, goal - taken.sum(dim=1))
    # In the order of `Reason`: 1 base, 2 extra, 3 fallback.
    return 2 * taken - 1 * base + 3 * late
