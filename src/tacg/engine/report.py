"""What the host reads from a step: one tensor, packed on the device and copied once; on a CPU nothing is copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from tacg.types import reads_are_free

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
        sure, *more = (board.astype("float32", copy=False) for board in boards[2:])
        rows, places = (each[::-1].tolist() for each in (sure != sure).nonzero())
        failed = dict(zip(rows, places, strict=True))
        table = {name: column.tolist() for name, column in zip(self.scalars, columns, strict=True)}
        return HostReport(reason, token, sure, more[0] if more else sure[:, :0], table, failed)


@dataclass(frozen=True, slots=True)
class HostReport:
    """A report on the host: arrays [S, L], scalars by name; `failed`: rows with unusable logits, and where first."""

    reason: np.ndarray
    token: np.ndarray
    sure: np.ndarray
    cut: np.ndarray
    table: dict[str, list[int]]
    failed: dict[int, int]

    def scalars(self, row: int) -> dict[str, int]:
        """The scalars of a row, by name."""
        return {name: column[row] for name, column in self.table.items()}

    def written(self) -> Iterator[tuple[int, int, int, int, float]]:
        """(row, position, token, reason, confidence) of every written position."""
        rows, places = (each.tolist() for each in self.reason.nonzero())
        for row, place in zip(rows, places, strict=True):
            facts = (board[row, place] for board in (self.token, self.reason, self.sure))
            token, reason, sure = (each.item() for each in facts)
            yield row, place, token, reason, sure


def _bits(values: Tensor) -> Tensor:
    return values.float().view(torch.int32).long()
