"""Trajectories: everything remembered about rows from step to step. Every step goes through

    scan = trajectories.scan(logits, needs, observed)    logits -> scalars
    signals = scan.to_signals(eligible, …)               scalars -> signals, which a policy reads
    decision = trajectories.decide(policy, signals)      updates the policy's own state
    trajectories.follow(scan, kept)                      updates the V-sized history

in the engine, in `commit_step` and in the plug-ins for other engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tacg.scan.memory import Memory
from tacg.scan.step_scan import StepScan
from tacg.types import but_not

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Decision, Needs, Signals


class Trajectories:
    """Memory of R rows x L positions.

    memory  the V-sized history; `width` positions of a row (None: L) can be observed at once and have one
    seen    bool [R, L], observed in the row's last step, so that the trajectory continues
    state   the policy's own state

    A position that was not observed in its row's last step has no trajectory and starts again without history.
    """

    def __init__(
        self, rows: int, length: int, device: torch.device | str = "cpu", kind: str = "fp32", width: int | None = None
    ) -> None:
        self.memory = Memory(rows, length if width is None else width, device, kind)
        self.seen = torch.zeros(rows, length, dtype=torch.bool, device=device)
        self.state: dict[str, Any] = {}

    def places(self) -> Tensor:
        """int64 [P]: the positions that have a trajectory, as indices into [R * L]."""
        return self.seen.view(-1).nonzero().squeeze(1)

    def scan(self, logits: Tensor, needs: Needs, observed: Tensor, **how: Any) -> StepScan:
        """Read the logits of a step; for `how` see `StepScan`."""
        return StepScan(logits, needs, self.memory, observed, self.seen, **how)

    def decide(self, policy: Any, signals: Signals) -> Decision:
        """Ask the policy, and update its state."""
        decision: Decision
        decision, self.state = policy.decide(signals, self.state)
        return decision

    def follow(self, scan: StepScan, kept: Tensor, rows: Tensor | None = None) -> None:
        """After the decision: trajectories continue where `kept`, bool [R, L], and end elsewhere.

        rows  bool [R], the rows that took part in the step (None: all); the others are unchanged
        """
        if self.seen.device.type == "cpu":
            large = self.memory.large
            if scan.follows or large:
                flat = kept.reshape(-1)
                mine = flat if scan.places is None else flat[scan.places]
                scan.follow(mine)
            if large:
                alike = self.memory.width == kept.shape[1]  # slots equal places, so older ones are found too
                over = but_not(self.seen | scan.observed, kept).view(-1).nonzero().squeeze(1)
                self.memory.release(over if alike else scan.slots[~mine])
        else:
            scan.follow()  # no synchronization; histories that are not kept are updated too
        self.seen = kept if rows is None else torch.where(rows[:, None], kept, self.seen)
