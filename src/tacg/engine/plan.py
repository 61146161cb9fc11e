"""What a forward computes of each row, and where its tokens lie among those of all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from tacg.cache import block_edge, window
from tacg.models.base import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tacg.engine.row import Row
    from tacg.models.base import ModelSpec


class Plan(NamedTuple):
    """What a forward computes; it stays as it is while no row moves.

    spans   of the rows, branches of a row one after another
    pack    int64 [N], their tokens as indices into the flat canvas
    offset  int64 [S, K, 1], where position 0 of the answer would be among these tokens, for each branch of a slot
    inside  whether every position of every slot is among them
    """

    spans: list[Span]
    pack: Tensor
    offset: Tensor
    inside: bool

    @classmethod
    def of(
        cls, rows: Sequence[Row | None], spec: ModelSpec, mode: str, prompt: int, length: int, copies: int,
        device: torch.device,
    ) -> Plan:  # fmt: skip
        """Lay out the spans of all rows and branches end to end.

        prompt, length  of the canvas, which has one more column: a mask
        copies          branches of a row at most
        """
        size = prompt + length + 1
        spans, pack, offset, total = [], [], torch.zeros(len(rows), copies, 1, dtype=torch.int64), 0
        for row in rows:
            if row is None:
                continue
            span, start = span_of(row, spec, mode), prompt - len(row.request.prompt)
            columns = torch.arange(start + span.start, start + span.stop)
            columns = columns.where(columns < prompt + len(row.answer), size - 1)  # masks beyond its end
            for copy in range(copies):
                if copy < row.branches:
                    spans.append(span)
                    pack.append(columns + (row.slot * copies + copy) * size)
                    total += len(span)
                offset[row.slot, copy] = total - span.stop + len(row.request.prompt)
        inside = int(offset.max()) + length <= total  # free slots and short rows may ask for what is not there
        return cls(spans, torch.cat(pack).to(device), offset.to(device), inside)

    def charge(self, rows: Sequence[Row], spec: ModelSpec) -> None:
        """This plan was computed: each branch is a forward of its row."""
        spans = iter(self.spans)
        for row in rows:
            for _ in range(row.branches):
                row.forwards += 1
                row.positions += len(next(spans))
            if spec.causal_block is not None:  # what is before this block is complete, and was computed just now
                edge = len(row.request.prompt) + row.blocks[row.block][0]
                row.cached = edge // spec.causal_block * spec.causal_block


def span_of(row: Row, spec: ModelSpec, mode: str) -> Span:
    """The part of the row that its next step computes."""
    start, stop = open_blocks(row)
    first = row.block_step == 0
    return Span(*window(mode, spec, start, stop, extent(row, spec), first=first, settled=row.cached), cache=row.cache)


def open_blocks(row: Row) -> tuple[int, int]:
    """Where the open blocks of the row begin and end, as positions of the canvas."""
    ahead = min(row.block + row.open, len(row.blocks)) - 1
    return len(row.request.prompt) + row.blocks[row.block][0], len(row.request.prompt) + row.blocks[ahead][1]


def extent(row: Row, spec: ModelSpec) -> int:
    """Prompt and answer; for block-causal models up to the end of the last block, which they know only whole."""
    length = len(row.request.prompt) + len(row.answer)
    return length if spec.causal_block is None else block_edge(length, spec.causal_block)
