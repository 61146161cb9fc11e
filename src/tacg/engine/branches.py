"""Branches: alternative canvases of a row that are forwarded side by side; one of them is kept."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch

from tacg.engine.advance import first_unfinished
from tacg.engine.batch import Batch
from tacg.errors import TacgError
from tacg.policies.state import resized
from tacg.scan import Memory, StepScan
from tacg.types import Branches, Needs, Reason

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.engine.advance import AnyReport, Boards
    from tacg.engine.row import Row
    from tacg.scan import Hidden
    from tacg.types import Decision, Signals


class BranchingBatch(Batch):
    """A batch whose policy may propose several next canvases per row: all are forwarded, one is kept.

    branches  proposed in the last step, to be forwarded in this one
    """

    branches: Branches | None = None

    def join(self, row: Row) -> None:
        """Assign the row a slot, without branches at first."""
        super().join(row)
        if self.branches is not None:
            self.branches.count[row.slot] = 0

    def _make_room(self, row: Row) -> None:
        super()._make_room(row)
        if self.branches is not None and self.branches.commit.shape[::2] != (len(self.rows), self.length):
            self.branches = grown(self.branches, len(self.rows), self.length)

    def _canvases(self) -> tuple[Tensor, int]:
        if self.branches is None:
            return super()._canvases()
        return candidates(self.canvas, self.branches, self.boards.masked, self.prompt), self.needs.branches

    def scan(self, logits: Tensor, hidden: Hidden | None, *, eager: bool) -> tuple[StepScan, Signals]:
        """Choose among the branches, if there are any, and continue with the logits of the chosen ones."""
        self.taken: Tensor | None = None
        if self.branches is not None:
            logits, self.taken = self._choose(logits, self.branches)
            self.view = self._look()
        return super().scan(logits, hidden, eager=eager)

    def _choose(self, logits: Tensor, branches: Branches) -> tuple[Tensor, Tensor]:
        """Let the policy pick a branch per row and write it; returns its logits [S * L, V] and what was written."""
        signals = branch_signals(logits, branches, self.boards.masked, self.needs, self.decode.scan)
        chosen = self.policy.choose(signals, self.trajectories.state)
        chosen = torch.minimum(chosen, (branches.count - 1).clamp(min=0))
        self.boards, after, written = take_branch(self.boards, self.answer, branches, chosen)
        self.answer.copy_(after)
        self._forget_blocks()  # a branch may have filled its block
        if self.constrained is not None:
            written = self.constrained.take(chosen, written)
        every = logits.view(*branches.commit.shape, -1)
        return every[torch.arange(len(every), device=self.device), chosen].flatten(0, 1), written

    def commit(self, scan: StepScan, signals: Signals, decision: Decision, before: Tensor | None = None) -> AnyReport:
        """Like any batch, in addition to what the chosen branches wrote; keeps the branches for the next step."""
        if decision.reach is not None:
            raise TacgError(f"`{self.policy.name}` looks ahead, so its forwards must not end early: leave out `reach`.")
        report = super().commit(scan, signals, decision, self.taken)
        if (self.branches is None) != (decision.branches is None):
            self.plan = None
        self.branches = decision.branches
        if self.constrained is not None and self.branches is not None:
            self.branches = self.constrained.propose(self.branches, decision.rank)
        return report


def candidates(canvas: Tensor, branches: Branches, masked: Tensor, prompt: int) -> Tensor:
    """The canvases of all branches, int64 [S, K, M + L + 1]; answers begin after `prompt` columns.

    A row without branches is forwarded as it is.
    """
    copies, length = branches.commit.shape[1:]
    canvases = canvas[:, None].repeat(1, copies, 1)
    answers = canvases[:, :, prompt : prompt + length]
    commit = branches.commit & masked[:, None] & (branches.count > 0)[:, None, None]
    answers.copy_(torch.where(commit, branches.tokens, answers))
    return canvases


def branch_signals(logits: Tensor, branches: Branches, masked: Tensor, needs: Needs, backend: str) -> Signals:
    """Signals of every branch, [S, K, L] each, from logits [S * K * L, V]."""
    copies, length = branches.commit.shape[1:]
    open_ = (masked[:, None] & ~branches.commit).flatten(0, 1)
    plain = Needs(*(needs.names & {"margin", "gap", "entropy"}))
    memory = Memory(0, length, logits.device)
    scan = StepScan(logits, plain, memory, open_, torch.zeros_like(open_), exact=False, backend=backend)
    nothing = open_.new_zeros(len(open_), dtype=torch.int64)
    return _folded(scan.to_signals(open_, step=nothing, steps=nothing, masked=open_), copies)


def _folded(signals: Signals, copies: int) -> Signals:
    """Reshape all signals from [S * K, L] to [S, K, L]."""

    def fold(board: Tensor) -> Tensor:
        return board.view(-1, copies, *board.shape[1:])

    boards = ("observed", "eligible", "first", "token", "confidence", "step", "steps", "masked")
    folded: dict[str, Any] = {name: fold(getattr(signals, name)) for name in boards}
    return replace(signals, measured={name: fold(board) for name, board in signals.measured.items()}, **folded)


def grown(branches: Branches, rows: int, length: int) -> Branches:
    """These branches in larger tensors; new rows have none."""
    tokens = branches.tokens.new_zeros(rows, branches.tokens.shape[1], length)
    empty = Branches(tokens.bool(), tokens, branches.count.new_zeros(rows))
    return Branches(**resized(asdict(branches), asdict(empty)))


def take_branch(boards: Boards, answer: Tensor, branches: Branches, chosen: Tensor) -> tuple[Boards, Tensor, Tensor]:
    """Write the chosen branch: the state, the answer, and where it wrote (as reasons, int64 [S, L])."""
    at = chosen[:, None, None].expand(-1, 1, answer.shape[1])
    commit = branches.commit.gather(1, at).squeeze(1) & boards.masked & (branches.count > 0)[:, None]
    answer = torch.where(commit, branches.tokens.gather(1, at).squeeze(1), answer)
    masked = boards.masked & ~commit
    block = first_unfinished(boards, masked)  # a branch may have filled its block
    step = boards.step * (block == boards.block)
    opened = (boards.open - (block - boards.block)).clamp(min=1)
    boards = boards._replace(masked=masked, block=block, step=step, open=opened)
    return boards, answer, commit * int(Reason.BRANCH)
