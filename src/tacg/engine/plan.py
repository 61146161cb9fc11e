"""What a forward computes for each row, and where its tokens are in the packed input."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from tacg.cache import window
from tacg.engine.pruning import pruned
from tacg.models.base import Span, Spans

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torch import Tensor

    from tacg.engine.row import Row
    from tacg.models.base import ModelSpec
    from tacg.types import Needs


class Plan(NamedTuple):
    """What a forward computes. It stays valid until a row's span changes.

    spans   spans of all rows, with the branches of a row next to each other
    pack    int64 [N], their tokens as indices into the flat canvas
    offset  int64 [S, K, 1], where position 0 of the answer would be among these tokens, for each branch of a slot
    at      int64 [S * L], where each position is among these tokens (first branch); only for CPUs, where few are read
    shadow  int64 [S], offset from a position to its shadow; None: there are no shadows
    inside  whether every position of every slot is among the tokens
    """

    spans: Spans
    pack: Tensor
    offset: Tensor
    at: Tensor | None
    shadow: Tensor | None
    inside: bool

    @classmethod
    def of(
        cls, rows: Sequence[Row | None], spec: ModelSpec, mode: str, needs: Needs, prompt: int, length: int,
        copies: int, device: torch.device,
    ) -> Plan:  # fmt: skip
        """Lay out the spans of all rows and branches end to end.

        prompt, length  of the canvas, which has one more column: a mask
        copies          maximum number of branches per row
        """
        size = prompt + length + 1
        spans, pack, total = Spans(), [], 0
        offset, shadow = (torch.zeros(len(rows), each, dtype=torch.int64) for each in (copies, 1))
        for row in rows:
            if row is None:
                continue
            span, start = span_of(row, spec, mode, needs), prompt - len(row.request.prompt)
            own = len(span) - (span.shadow[1] - span.shadow[0])
            columns = torch.cat([torch.arange(*part) for part in span.stretches()]) + start
            columns = columns.where(columns < prompt + len(row.answer), size - 1)  # masks beyond the row's end
            columns[own:] = size - 1
            for copy in range(copies):
                if copy < row.branches:
                    spans.append(span)
                    pack.append(columns + (row.slot * copies + copy) * size)
                    total += len(span)
                offset[row.slot, copy] = total - len(span) - span.start + len(row.request.prompt)
            shadow[row.slot] = own + span.start - span.shadow[0]
        shadowed = "recheck" in needs
        # Free slots and short rows may refer to tokens that are not there.
        inside = int((offset + shadow if shadowed else offset).max()) + length <= total
        table = torch.cat([offset.view(-1), shadow.view(-1), *pack]).to(device)  # one upload
        places, lags, tokens = torch.split(table, [offset.numel(), len(rows), total])
        at = (offset[:, :1] + torch.arange(length)).view(-1) if device.type == "cpu" else None
        return cls(spans, tokens, places.view(len(rows), copies, 1), at, lags if shadowed else None, inside)

    def charge(self, rows: Sequence[Row], spec: ModelSpec) -> None:
        """Count this plan's forwards and positions; each branch is a forward of its row."""
        spans = iter(self.spans)
        for row in rows:
            for _ in range(row.branches):
                row.forwards += 1
                row.positions += len(next(spans))
            if spec.causal_block is not None:  # everything before this block is complete, and was just computed
                edge = len(row.request.prompt) + row.blocks[row.block][0]
                padding = spec.padding(len(row.request.prompt))
                row.cached = (edge + padding) // spec.causal_block * spec.causal_block - padding


def span_of(row: Row, spec: ModelSpec, mode: str, needs: Needs) -> Span:
    """The part of the row that the next step computes."""
    start, stop = open_blocks(row)
    first, length = row.block_step == 0, extent(row, spec)
    padding = spec.padding(len(row.request.prompt))
    left, right, reach = window(mode, spec, start, stop, length, first=first, settled=row.cached, padding=padding)
    span = Span(left, right, reach, row.cache, padding=padding)
    plain = row.reach is None and needs.suffix is None and "recheck" not in needs
    return span if plain else pruned(span, (start, stop), row, spec, needs, length)


def span_key(row: Row, spec: ModelSpec, mode: str, needs: Needs) -> Hashable:
    """What the row's next span depends on: while it is unchanged, the plan stays valid."""
    if mode != "none" or spec.causal_block is not None:
        return row.branches, row.reach, row.block, row.open, row.block_step == 0
    if needs.suffix is not None or "recheck" in needs:
        return row.branches, row.reach, row.block, row.open
    return row.branches, row.reach


def open_blocks(row: Row) -> tuple[int, int]:
    """Where the row's open blocks begin and end on the canvas."""
    ahead = min(row.block + row.open, len(row.blocks)) - 1
    return len(row.request.prompt) + row.blocks[row.block][0], len(row.request.prompt) + row.blocks[ahead][1]


def extent(row: Row, spec: ModelSpec) -> int:
    """Length of prompt and answer; for block-causal models, rounded up to the end of the last block."""
    prompt = len(row.request.prompt)
    length = prompt + len(row.answer)
    return length if spec.causal_block is None else spec.block_edge(length, spec.padding(prompt))
