"""Trajectories: all that is remembered of rows from step to step. The one way through a step is

    scan = trajectories.scan(logits, needs, observed)    logits -> scalars
    signals = scan.to_signals(eligible, …)               scalars -> boards, which a policy reads
    decision = trajectories.decide(policy, signals)      the policy's own state moves on
    trajectories.follow(scan, kept)                      the V-sized history moves on

for the engine, for `commit_step` and for the plug-ins of other engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tacg.scan.memory import Memory
from tacg.scan.step_scan import StepScan

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Decision, Needs, Signals


class Trajectories:
    """Memory of R rows x L positions.

    memory  the V-sized history; `width` positions of a row (None: L) can be observed at once and have one
    seen    bool [R, L], observed in the row's last step, so that the trajectory goes on
    state   the policy's own

    A position that was not observed in its row's last step has no trajectory: it starts neutral when it comes (back).
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
        """Read the logits of a step; `how` as in `StepScan`."""
        return StepScan(logits, needs, self.memory, observed, self.seen, **how)

    def decide(self, policy: Any, signals: Signals) -> Decision:
        """Ask the policy; its state moves on."""
        decision: Decision
        decision, self.state = policy.decide(signals, self.state)
        return decision

    def follow(self, scan: StepScan, kept: Tensor, rows: Tensor | None = None) -> None:
        """The step is decided: trajectories go on where `kept`, bool [R, L], and end elsewhere.

        rows  bool [R], the rows that took part in the step (None: all); those of the others stay as they are
        """
        if self.seen.device.type == "cpu":
            flat = kept.reshape(-1)
            mine = flat if scan.places is None else flat[scan.places]
            scan.follow(mine)
            if self.memory.large:
                alike = self.memory.width == kept.shape[1]  # slots are places, so that older ones are found as well
                over = ((self.seen | scan.observed) & ~kept).view(-1).nonzero().squeeze(1)
                self.memory.release(over if alike else scan.slots[~mine])
        else:
            scan.follow()  # nothing is asked of the device: what nobody keeps may go on, too
        self.seen = kept if rows is None else torch.where(rows[:, None], kept, self.seen)
