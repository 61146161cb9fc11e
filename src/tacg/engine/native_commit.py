"""Commits of a step on a CPU in C: one call instead of forty small operations, and a report without boards.

`advance.py` and `commits.py` say what it means, and are used wherever this is not.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from tacg.engine.report import HostReport
from tacg.scan.compiled import library
from tacg.types import reads_are_free

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.engine.advance import Boards
    from tacg.types import Decision, Needs, Signals

COLUMNS = 4  # of `written`: row, position, token, reason


@functools.cache
def kernel() -> tuple[ctypes.CDLL | None, str]:
    """native_commit.c, compiled, and by what; or None, and why."""
    found, how = library(Path(__file__).with_suffix(".c"))
    if found is not None:
        address, number = ctypes.c_void_p, ctypes.c_int64
        found.tacg_commit.restype = number
        found.tacg_commit.argtypes = [*[number] * 3, *[address] * 14, ctypes.c_int, address, number, *[address] * 7]
        found.tacg_places.restype = number
        found.tacg_places.argtypes = [number, *[address] * 4]
    return found, how


def places_of(observed: Tensor, history: Tensor | None) -> tuple[Tensor, Tensor]:
    """int64 [P] each: the observed places of bool [S, L], as indices into [S * L], and the slots of their history.

    history  int64 [S * L], the slot of each place (None: equal)
    """
    library, _ = kernel()
    if library is None:
        places = torch.from_numpy(observed.numpy().ravel().nonzero()[0])
        return places, places if history is None else history.index_select(0, places)
    observed, found = observed.contiguous(), torch.empty(2, observed.numel(), dtype=torch.int64)
    places, slots = found.unbind()
    address = None if history is None else history.data_ptr()
    count = library.tacg_places(observed.numel(), observed.data_ptr(), address, places.data_ptr(), slots.data_ptr())
    return places[:count], slots[:count]


class NativeReport(NamedTuple):
    """What was written: `lines` times of row, position, token and reason, and confidences; see `Report`."""

    lines: int
    written: Tensor
    share: Tensor
    failed: Tensor
    scalars: dict[str, Tensor]

    def read(self, length: int) -> HostReport:
        """As lists."""
        lines, shares = self.written[: self.lines].tolist(), self.share[: self.lines].tolist()
        written = [(*line, share) for line, share in zip(lines, shares, strict=True)]
        table = {name: column.tolist() for name, column in self.scalars.items()}
        failed = {row: place for row, place in enumerate(self.failed.tolist()) if place >= 0}
        return HostReport(written, table, failed)


def is_native(signals: Signals, decision: Decision) -> bool:
    """Whether the kernel writes this decision: on a CPU, and only masks are written."""
    if not reads_are_free(signals.confidence) or decision.rank.dtype != torch.float32:
        return False
    revises = decision.remask is not None or decision.edit is not None or decision.stay is not None
    plain = not revises and decision.finish is None and decision.branches is None
    return plain and signals.confidence.dtype == torch.float32 and kernel()[0] is not None


def commit(
    boards: Boards, answer: Tensor, signals: Signals, decision: Decision, needs: Needs
) -> tuple[Boards, Tensor, NativeReport]:
    """Write a decision into the answer; returns the state after the step, whose trajectories continue, and the report.

    It is for decisions that `is_native` accepts.
    """
    library, _ = kernel()
    assert library is not None
    rows, length = boards.masked.shape
    masked, kept, block, step, failed = map(
        torch.empty_like, (boards.masked, boards.masked, boards.block, boards.step, boards.step)
    )
    written, share = boards.grid.new_empty(rows * length, COLUMNS), torch.empty(rows * length)
    read = (
        signals.eligible, signals.observed, boards.masked, decision.base, decision.extra, signals.active,
        decision.rank, signals.confidence, signals.token, boards.grid, boards.block, signals.step, signals.steps,
        decision.quota,
    )  # fmt: skip
    given = [each if each is None else each.contiguous() for each in read]
    count = library.tacg_commit(
        rows, length, boards.starts.shape[1], *(each if each is None else each.data_ptr() for each in given),
        needs.committed, answer.data_ptr(), answer.stride(0),
        *(each.data_ptr() for each in (masked, kept, block, step, failed, written, share)),
    )  # fmt: skip
    report = NativeReport(count, written, share, failed, {"block": block, "step": step})
    return boards._replace(masked=masked, block=block, step=step), kept, report
