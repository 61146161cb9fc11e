"""What a step shows of the model's attention: asked of the forward, then laid out as a board."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacg.engine.plan import open_blocks
from tacg.models.base import AttentionMap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tacg.engine.row import Row


def attention_map(row: Row, share: float) -> AttentionMap:
    """What the row's next forward shall show: attention between positions of its open blocks."""
    return AttentionMap(*open_blocks(row), share)


def attention_board(rows: Sequence[Row], maps: Sequence[AttentionMap], slots: int, length: int) -> Tensor | None:
    """float [S, L, L]: what the rows' forwards have shown, 0 elsewhere; None if nobody has asked."""
    if not maps:
        return None
    found = [each.mean() for each in maps]
    board = found[0].new_zeros(slots, length, length)
    for row, each, mean in zip(rows, maps, found, strict=True):
        here = slice(each.start - len(row.request.prompt), each.stop - len(row.request.prompt))
        board[row.slot, here, here] = mean
    return board
