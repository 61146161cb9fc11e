"""What the host reads from a step: one tensor, packed on the device and copied once; on a CPU nothing is copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from tacg.types import reads_are_free

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class Report(NamedTuple):
    """Everything the host reads from a step.

    boards   reasons, tokens and confidences, [S, L] each; for rows with constraints also the probability that was
             removed. On a device they are packed into one, int64 [S, 3 L + N (+ L)]: after the first three (of a
             confidence the bits of a float32) come the N scalars of each row
    scalars  int64 [S] by name: block, step, open, stay, branches, reach
    """

    boards: tuple[Tensor, ...]
    scalars: Mapping[str, Tensor]

    @classmethod
    def of(
        cls, reason: Tensor, token: Tensor, confidence: Tensor, scalars: Mapping[str, Tensor], cut: Tensor | None = None
    ) -> Report:
        """Collect tensors [S, L] and scalars [S]."""
        boards = [reason, token, confidence] if cut is None else [reason, token, confidence, cut]
        if not reads_are_free(reason):
            columns, bits = torch.stack(list(scalars.values()), dim=1), [_bits(board) for board in boards[2:]]
            boards = [torch.cat([reason, token, bits[0], columns, *bits[1:]], dim=1)]
        return cls(tuple(boards), scalars)

    def read(self, length: int) -> HostReport:
        """Copy it to the host, unless it is there."""
        columns: Any = self.scalars.values()
        boards = [(board if board.is_cpu else board.cpu()).numpy() for board in self.boards]
        if len(boards) == 1:
            edges = [length, 2 * length, 3 * length, 3 * length + len(columns)]
            reason, token, sure, told, cut = np.split(boards[0], edges, axis=1)
            boards, columns = [reason, token, *(bits.astype("int32").view("float32") for bits in (sure, cut))], told.T
        reason, token = boards[:2]

        sure, *removed = (board.astype("float32", copy=False) for board in boards[2:])
        where = reason.nonzero()
        facts: list[Any] = [*where, token[where], reason[where], sure[where]]
        written = list(zip(*(each.tolist() for each in facts), strict=True))
        rows, places = (each[::-1].tolist() for each in (sure != sure).nonzero())
        failed = dict(zip(rows, places, strict=True))
        table = {name: column.tolist() for name, column in zip(self.scalars, columns, strict=True)}
        return HostReport(written, table, failed, removed[0] if removed and removed[0].size else None)


@dataclass(frozen=True, slots=True)
class HostReport:
    """A report on the host.

    written  (row, position, token, reason, confidence) of every written position
    table    the scalars by name
    failed   rows with unusable logits, and where first
    cut      float32 [S, L], for rows with constraints: the probability that was removed
    """

    written: list[tuple[int, int, int, int, float]]
    table: dict[str, list[int]]
    failed: dict[int, int]
    cut: np.ndarray | None = None

    def scalars(self, row: int) -> dict[str, int]:
        """The scalars of a row, by name."""
        return {name: column[row] for name, column in self.table.items()}


def _bits(values: Tensor) -> Tensor:
    return values.float().view(torch.int32).long()
