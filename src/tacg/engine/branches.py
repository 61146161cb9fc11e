"""Branches: alternative canvases of a row that are forwarded side by side, of which one goes on."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch

from tacg.engine.advance import first_unfinished
from tacg.policies.state import resized
from tacg.scan import Memory, StepScan
from tacg.types import Branches, Needs, Reason

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.engine.advance import Boards
    from tacg.types import Signals


def candidates(canvas: Tensor, branches: Branches, masked: Tensor, prompt: int) -> Tensor:
    """The canvases of all branches, int64 [S, K, M + L + 1]; answers begin behind `prompt` columns."""
    copies, length = branches.commit.shape[1:]
    canvases = canvas[:, None].repeat(1, copies, 1)
    answers = canvases[:, :, prompt : prompt + length]
    answers.copy_(torch.where(branches.commit & masked[:, None], branches.tokens, answers))
    return canvases


def branch_signals(logits: Tensor, branches: Branches, masked: Tensor, needs: Needs, backend: str) -> Signals:
    """Signals of every branch, boards [S, K, L], from logits [S * K * L, V]."""
    copies, length = branches.commit.shape[1:]
    open_ = (masked[:, None] & ~branches.commit).flatten(0, 1)
    plain = Needs(*(needs.names & {"margin", "gap", "entropy"}))
    memory = Memory(0, length, logits.device)
    scan = StepScan(logits, plain, memory, open_, torch.zeros_like(open_), exact=False, backend=backend)
    nothing = open_.new_zeros(len(open_), dtype=torch.int64)
    return _folded(scan.to_signals(open_, step=nothing, steps=nothing, masked=open_), copies)


def _folded(signals: Signals, copies: int) -> Signals:
    """Boards [S * K, L] as [S, K, L]."""

    def fold(board: Tensor) -> Tensor:
        return board.view(-1, copies, *board.shape[1:])

    boards = ("observed", "eligible", "first", "token", "confidence", "step", "steps", "masked")
    folded: dict[str, Any] = {name: fold(getattr(signals, name)) for name in boards}
    return replace(signals, measured={name: fold(board) for name, board in signals.measured.items()}, **folded)


def grown(branches: Branches, rows: int, length: int) -> Branches:
    """These branches on larger boards; the rows that are new have none."""
    tokens = branches.tokens.new_zeros(rows, branches.tokens.shape[1], length)
    empty = Branches(tokens.bool(), tokens, branches.count.new_zeros(rows))
    return Branches(**resized(asdict(branches), asdict(empty)))


def take_branch(
    boards: Boards, answer: Tensor, branches: Branches, chosen: Tensor, ruler: Tensor
) -> tuple[Boards, Tensor, Tensor]:
    """The branch that goes on is written: boards, answer, and where it wrote (as reasons, int64 [S, L])."""
    at = chosen[:, None, None].expand(-1, 1, answer.shape[1])
    commit = branches.commit.gather(1, at).squeeze(1) & boards.masked & (branches.count > 0)[:, None]
    answer = torch.where(commit, branches.tokens.gather(1, at).squeeze(1), answer)
    masked = boards.masked & ~commit
    _, block = first_unfinished(boards, masked, ruler)  # a branch may have filled its block
    step = boards.step * (block == boards.block)
    opened = (boards.open - (block - boards.block)).clamp(min=1)
    boards = boards._replace(masked=masked, block=block, step=step, open=opened)
    return boards, answer, commit * int(Reason.BRANCH)
