"""What the host reads from a step: one tensor, packed on the device and copied once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from torch import Tensor


class Report(NamedTuple):
    """Everything the host reads from a step, in one tensor.

    packed  int64 [S, 3 L + N]: reasons, tokens and confidences (the bits of a float32), then N scalars per row,
            and for rows with constraints L more floats: the probability that was removed
    names   of the scalars: first_mask and first_eos (L: none), block, step, open, stay, branches, reach
    """

    packed: Tensor
    names: tuple[str, ...]

    @classmethod
    def of(
        cls, reason: Tensor, token: Tensor, confidence: Tensor, scalars: Mapping[str, Tensor], cut: Tensor | None = None
    ) -> Report:
        """Pack tensors [S, L] and scalars [S]."""
        more = [] if cut is None else [_bits(cut)]
        columns = torch.stack(list(scalars.values()), dim=1)
        return cls(torch.cat([reason, token, _bits(confidence), columns, *more], dim=1), tuple(scalars))

    def read(self, length: int) -> HostReport:
        """Copy it to the host."""
        table, end = self.packed.cpu().numpy(), 3 * length + len(self.names)
        reason, token, sure = (table[:, at : at + length] for at in (0, length, 2 * length))
        sure, cut = (part.astype("int32").view("float32") for part in (sure, table[:, end:]))
        rows, places = (each[::-1].tolist() for each in (sure != sure).nonzero())
        failed = dict(zip(rows, places, strict=True))
        return HostReport(reason, token, sure, cut, self.names, table[:, 3 * length : end].tolist(), failed)


@dataclass(frozen=True, slots=True)
class HostReport:
    """A report on the host: arrays [S, L], scalars by row; `failed`: rows with unusable logits, and where first."""

    reason: np.ndarray
    token: np.ndarray
    sure: np.ndarray
    cut: np.ndarray
    names: tuple[str, ...]
    table: list[list[int]]
    failed: dict[int, int]

    def scalars(self, row: int) -> dict[str, int]:
        """The scalars of a row, by name."""
        return dict(zip(self.names, self.table[row], strict=True))

    def written(self) -> Iterator[tuple[int, int, int, int, float]]:
        """(row, position, token, reason, confidence) of every written position."""
        at = self.reason.nonzero()
        facts = (*at, self.token[at], self.reason[at], self.sure[at])
        return zip(*(each.tolist() for each in facts), strict=True)


def _bits(values: Tensor) -> Tensor:
    return values.float().view(torch.int32).long()
