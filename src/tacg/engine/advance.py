"""The state of all rows, and how a decision advances it: pure functions over tensors of fixed shape.

Nothing here reads a value back from the device. What the host must know is packed into one tensor, the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tacg.engine import native_commit
from tacg.engine.commits import resolve_commits
from tacg.engine.pruning import before_gap
from tacg.engine.report import Report
from tacg.types import Reason, but_not

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.engine.native_commit import NativeReport
    from tacg.types import Decision, Needs, Signals

    AnyReport = Report | NativeReport


class Boards(NamedTuple):
    """The state of S rows, with L positions of the longest answer and B blocks of the row that has most.

    masked       bool  [S, L]  not committed yet (all false in a free slot)
    holes        bool  [S, L]  masked at the start: the positions that may be written
    grid         int64 [S, L]  the block number of each position; 0 beyond the row's end
    starts       int64 [S, B]  the first position of each block; `budgets`: its maximum number of steps
    block, step  int64 [S]     the active block, and the steps taken in it
    open         int64 [S]     how many blocks are open, counted from the active one
    length       int64 [S]     positions of the answer; `reach`: those that the next forward computes
    seed         int64 [S]     random seed of the row; temperature float [S]
    """

    masked: Tensor
    holes: Tensor
    grid: Tensor
    starts: Tensor
    budgets: Tensor
    block: Tensor
    step: Tensor
    open: Tensor
    length: Tensor
    reach: Tensor
    seed: Tensor
    temperature: Tensor

    @classmethod
    def blank(cls, rows: int, length: int, blocks: int, device: torch.device | str = "cpu") -> Boards:
        """Empty state: all slots are free."""
        flags = torch.zeros(2, rows, length, dtype=torch.bool, device=device)
        tables = torch.zeros(2, rows, blocks, dtype=torch.int64, device=device)
        numbers = torch.zeros(5, rows, dtype=torch.int64, device=device)
        one = torch.ones(rows, dtype=torch.int64, device=device)
        grid = torch.zeros(rows, length, dtype=torch.int64, device=device)
        temperature = torch.zeros(rows, device=device)
        return cls(
            flags[0], flags[1], grid, tables[0], tables[1], numbers[0], numbers[1], one, numbers[2], numbers[3],
            numbers[4], temperature,
        )  # fmt: skip

    @classmethod
    def of(
        cls, holes: Sequence[bool], masked: Sequence[bool], blocks: Sequence[tuple[int, int, int]], seed: int,
        temperature: float, length: int, most: int,
    ) -> Boards:  # fmt: skip
        """The state of one row before its first step, with `length` positions and room for `most` blocks."""
        made = cls.blank(1, length, most)
        made.masked[0, : len(holes)] = torch.tensor(masked)
        made.holes[0, : len(holes)] = torch.tensor(holes)
        for number, (start, stop, steps) in enumerate(blocks):
            made.grid[0, start:stop] = number
            made.starts[0, number], made.budgets[0, number] = start, steps
        made.block[0] = made.grid[0, masked.index(True)]
        made.length[0] = made.reach[0] = len(holes)
        made.seed[0], made.temperature[0] = seed, temperature
        return made


class InBlock(NamedTuple):
    """What depends on the active blocks only: it is computed when a row enters a block, not in every step.

    here   bool  [S, L]  positions of the active block
    steps  int64 [S]     steps that the block may take
    start  int64 [S, 1]  its first position
    """

    here: Tensor
    steps: Tensor
    start: Tensor

    @classmethod
    def of(cls, boards: Boards) -> InBlock:
        """Look it up for the blocks that are active now."""
        block = boards.block[:, None]
        return cls(boards.grid == block, boards.budgets.gather(1, block).squeeze(1), boards.starts.gather(1, block))


def in_view(boards: Boards, needs: Needs, active: InBlock, *, whole: bool, cut: bool = False) -> tuple[Tensor, Tensor]:
    """The observed and the eligible positions, bool [S, L] each.

    whole  observe every mask; committed positions only in open blocks, and only if the policy needs them
    cut    forwards may end before the answer does (`Decision.reach`)
    """
    masked = boards.masked
    if cut:
        masked = masked & (torch.arange(masked.shape[1], device=masked.device) < boards.reach[:, None])
    if needs.scope == "block":
        here = active.here
    else:
        ahead = boards.grid - boards.block[:, None]
        here = (ahead >= 0) & (ahead < boards.open[:, None])
    eligible = masked & here
    if whole or needs.scope == "answer":
        # Finished blocks are final: nothing there is observed again, so nothing there can be revised.
        masked = masked if needs.suffix is None else masked & before_gap(boards, needs.suffix)
        return (masked | (boards.holes & here) if needs.committed else masked), eligible
    return (boards.holes & here if needs.committed else eligible), eligible


def advance(
    boards: Boards, answer: Tensor, signals: Signals, decision: Decision, needs: Needs, mask_id: int,
    before: Tensor | None = None, writes: tuple[Tensor, Tensor] | None = None, cut: Tensor | None = None,
) -> tuple[Boards, Tensor, Tensor, AnyReport]:  # fmt: skip
    """Write a decision: the state and the answer [S, L] after the step, whose trajectories continue, and the report.

    before  int64 [S, L], reasons of what was written before the scan (a chosen branch)
    writes  for rows with constraints: reasons and tokens, int64 [S, L] each, of what is really written
    cut     float [S, L], added to the report: the probability that constraints removed

    On a CPU, a kernel writes what most policies decide, into the answer itself.
    """
    if before is None and writes is None and native_commit.is_native(signals, decision):
        after, kept, native = native_commit.commit(boards, answer, signals, decision, needs)
        if decision.open is not None or decision.reach is not None:
            after = _beyond_the_block(boards, after, signals, decision, native.scalars)
        return after, answer, kept, native
    reason, token = (resolve_commits(signals, decision), signals.token) if writes is None else writes
    written = reason > 0
    masked = but_not(boards.masked, written)
    if decision.remask is not None:
        remask = reason == int(Reason.REMASK)
        token, masked = torch.where(remask, mask_id, token), masked | remask
    answer = torch.where(written, token, answer)
    if before is not None:
        token, reason = torch.where(before > 0, answer, token), torch.maximum(before, reason)

    block = first_unfinished(boards, masked)
    told = {}
    if decision.stay is not None:  # applied in a full block while something changes and steps are left
        full = (block != boards.block) | ~masked.any(dim=1)
        staying = decision.stay & full & written.any(dim=1) & (boards.step + 1 < signals.steps)
        block, told["stay"] = torch.where(staying, boards.block, block), staying.long()
    step = (boards.step + 1) * (block == boards.block)
    told |= {"block": block, "step": step}
    after = boards._replace(masked=masked, block=block, step=step)
    if decision.open is not None or decision.branches is not None or decision.reach is not None:
        after = _beyond_the_block(boards, after, signals, decision, told)
    kept = signals.observed if needs.committed else signals.observed & masked
    return after, answer, kept, Report.of(reason, token, signals.confidence, told, cut)


def _beyond_the_block(
    boards: Boards, after: Boards, signals: Signals, decision: Decision, told: dict[str, Tensor]
) -> Boards:
    """Apply what the policy says about the next forward: blocks that open early, branches, positions left out."""
    if decision.open is not None:  # finished blocks no longer count
        told["open"] = (decision.open - (after.block - boards.block)).clamp(min=1)
        after = after._replace(open=told["open"])
    if decision.branches is not None:
        told["branches"] = decision.branches.count
    if decision.reach is not None:
        place = torch.arange(after.masked.shape[1], device=after.masked.device)
        useful = (after.masked & (place < decision.reach[:, None])).any(dim=1)
        useful &= (after.block == boards.block) & (after.step + 1 < signals.steps)
        told["reach"] = torch.where(useful, torch.minimum(decision.reach, boards.length), boards.length)
        after = after._replace(reach=told["reach"])
    return after


def first_unfinished(boards: Boards, masked: Tensor) -> Tensor:
    """int64 [S]: the first block with a mask; the last of all blocks if there is none."""
    return torch.where(masked, boards.grid, boards.starts.shape[1] - 1).amin(dim=1)
