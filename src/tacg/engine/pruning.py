"""Forwards that leave positions out, or add shadows: for `Decision.reach`, `Needs.suffix` and "recheck"."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.engine.advance import Boards
    from tacg.engine.row import Row
    from tacg.models.base import ModelSpec, Span
    from tacg.types import Needs


def pruned(span: Span, blocks: tuple[int, int], row: Row, spec: ModelSpec, needs: Needs, length: int) -> Span:
    """The span without the positions that the policy leaves out, and with the shadows that it needs.

    blocks  where the open blocks begin and end on the canvas, which has `length` positions
    """
    right, reach, gap = span.stop, span.reach, (0, 0)
    if row.reach is not None and spec.causal_block is None:  # a block-causal model needs whole blocks
        right, reach = (min(edge, len(row.request.prompt) + row.reach) for edge in (right, reach))
    elif needs.suffix is not None and spec.causal_block is None:
        gap = _suffix_gap(row, spec, blocks[1] + needs.suffix, length - 1)
        reach -= gap[1] - gap[0]
    shadow = blocks if "recheck" in needs else (0, 0)
    return replace(span, stop=right, reach=reach, gap=gap if gap[0] < right else (0, 0), shadow=shadow)


def _suffix_gap(row: Row, spec: ModelSpec, start: int, stop: int) -> tuple[int, int]:
    """The masks from `start` up to `stop` or to the first given token, as positions on the canvas."""
    prompt = len(row.request.prompt)
    given = (at for at in range(start, stop) if row.answer[at - prompt] != spec.mask_id)
    stop = next(given, stop)
    return (start, stop) if start < stop else (0, 0)


def before_gap(boards: Boards, suffix: int) -> Tensor:
    """bool [S, L]: open blocks, everything before them, and `suffix` positions after them."""
    place = torch.arange(boards.grid.shape[1], device=boards.grid.device)
    until = (boards.block + boards.open)[:, None]
    edge = ((boards.grid < until) & (place < boards.length[:, None])).sum(dim=1, keepdim=True)
    return place < edge + suffix
