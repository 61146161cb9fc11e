"""What the host reads from a step: one tensor, packed on the device and copied once; on a CPU nothing is copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from tacg.types import reads_are_free

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
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
        more = () if cut is None else (cut,)
        if reads_are_free(reason):
            return cls((reason, token, confidence, *more), scalars)
        columns = torch.stack(list(scalars.values()), dim=1)
        packed = torch.cat([reason, token, _bits(confidence), columns, *map(_bits, more)], dim=1)
        return cls((packed,), scalars)

    def read(self, length: int) -> HostReport:
        """Copy it to the host, unless it is there."""
        if len(self.boards) == 1:
            boards, columns = unpacked(self.boards[0].cpu().numpy(), length, len(self.scalars))
        else:
            boards, columns = [each.numpy() for each in self.boards], [each.tolist() for each in self.scalars.values()]
        reason, token, sure, *cut = boards
        rows, places = (each[::-1].tolist() for each in (sure != sure).nonzero())
        failed = dict(zip(rows, places, strict=True))
        table = dict(zip(self.scalars, columns, strict=True))
        return HostReport(reason, token, sure, cut[0] if cut else None, table, failed)


@dataclass(frozen=True, slots=True)
class HostReport:
    """A report on the host: arrays [S, L], scalars by name; `failed`: rows with unusable logits, and where first."""

    reason: np.ndarray
    token: np.ndarray
    sure: np.ndarray
    cut: np.ndarray | None
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


def unpacked(table: np.ndarray, length: int, scalars: int) -> tuple[list[np.ndarray], list[list[int]]]:
    """The boards and the columns of scalars of a packed report."""
    end = 3 * length + scalars
    starts = [0, length, 2 * length, *([end] if table.shape[1] > end else [])]
    boards = [table[:, start : start + length] for start in starts]
    boards[2:] = [bits.astype("int32").view("float32") for bits in boards[2:]]
    return boards, table[:, 3 * length : end].T.tolist()


def _bits(values: Tensor) -> Tensor:
    return values.float().view(torch.int32).long()
