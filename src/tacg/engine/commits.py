"""From a decision to what is written. Every step writes something, step budgets are kept, and revising ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tacg.types import Reason, but_not, reads_are_free, top

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Decision, Signals


def resolve_commits(signals: Signals, decision: Decision) -> Tensor:
    """What is written now and why, int64 [R, L] of `Reason`; 0 where nothing is written.

    Beyond the decision, positions are added by rank to meet the step budget: at least one in every row that has masks,
    and in the last step everything that is left.
    """
    base = decision.base & signals.eligible
    taken = base if decision.extra is None else base | (decision.extra & signals.eligible)
    # If several blocks are open, the active one must make progress.
    due = signals.eligible if signals.active is None else signals.active
    done = taken if signals.active is None else taken & due
    owed = _quota(signals, decision) - done.sum(dim=1)
    reason = (taken * int(Reason.EXTRA)).masked_fill(base, int(Reason.BASE))
    if not reads_are_free(owed) or any(count > 0 for count in owed.tolist()):
        reason = reason.masked_fill(top(decision.rank, but_not(due, taken), owed), int(Reason.FALLBACK))
    if decision.finish is not None and signals.masked is not None:
        rest = but_not(signals.masked & signals.observed & decision.finish[:, None], taken)
        reason = reason.masked_fill(rest, int(Reason.FINISH))
    if decision.edit is not None:
        reason = reason.masked_fill(_revisable(signals, decision.edit), int(Reason.EDIT))
    if decision.remask is not None:
        remask = _revisable(signals, decision.remask)
        # No re-masking in a row's last step, or if the row would neither gain commits nor have a step left for each
        # mask.
        gain = ((reason > 0) & signals.eligible).sum(dim=1) - remask.sum(dim=1)
        left = signals.steps - signals.step - 1
        ahead = (gain > 0) | (signals.eligible.sum(dim=1) - gain <= left)
        remask &= (ahead & (left > 0))[:, None]
        reason = reason.masked_fill(remask, int(Reason.REMASK))
    return reason


def _quota(signals: Signals, decision: Decision) -> Tensor:
    """int64 [R]: commits that the step must reach."""
    if decision.quota is None and decision.branches is None:
        return signals.quota()
    wanted = signals.quota() if decision.quota is None else decision.quota.clamp(min=1)
    if decision.branches is not None:  # the chosen branch commits something in the next step
        wanted = wanted.masked_fill(decision.branches.count > 0, 0)
    last = signals.step + 1 >= signals.steps
    return torch.where(last, signals.eligible.shape[1], wanted)


def _revisable(signals: Signals, where: Tensor) -> Tensor:
    """The positions in `where` that are committed and in open blocks."""
    assert signals.masked is not None
    return but_not(where & signals.observed, signals.masked)
