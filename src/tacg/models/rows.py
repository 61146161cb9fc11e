"""Packed tokens as rows: the rotation of each token, and attention within rows.

On the CPU each row attends by itself (`PackedRows`), so that its rounding does not depend on its neighbours. On a
device all rows attend at once (`DeviceRows`), so that the number of kernels does not depend on the number of rows.
"""

from __future__ import annotations

from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tacg.models.base import Span, Spans
from tacg.models.lanes import Lane, Tables
from tacg.models.products import attention

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


class Turns(NamedTuple):
    """Rotary embedding by position: cosine and sine [N, 1, D], and on a GPU the partner of each dimension [D].

    With partners, D is the size of a head, and the sine of the first half is negative.
    """

    cos: Tensor
    sin: Tensor
    partner: Tensor | None


def turned(x: Tensor, turns: Turns) -> Tensor:
    """Rotary embedding of x [N, H, D]; dimensions beyond the rotary ones pass through."""
    size, kind = turns.cos.shape[-1], turns.cos.dtype
    turning, rest = x[..., :size].to(kind), x[..., size:]
    left, right = turning.chunk(2, dim=-1)
    made = (turning * turns.cos + torch.cat([-right, left], dim=-1) * turns.sin).to(x.dtype)
    return torch.cat([made, rest], dim=-1) if rest.shape[-1] else made


def turn_into(x: Tensor, out: Tensor, turns: Turns) -> None:
    """The same with partners, all heads at once. `out` may be x."""
    if turns.partner is None:
        raise ValueError("without partners")
    parts = x * turns.cos, x.index_select(-1, turns.partner), turns.sin
    if torch.compiler.is_compiling():  # the compiler cannot write into a part of a tensor, and needs no help here
        out.copy_(torch.addcmul(*parts))
    else:
        torch.addcmul(*parts, out=out)


def packed_rows(spans: Sequence[Span], *words: Any, device: torch.device, **named: Any) -> PackedRows:
    """The rows of these spans, in the form that suits the device. For repeated spans they are kept (see `Spans`)."""
    kind = PackedRows if device.type == "cpu" else DeviceRows
    if not isinstance(spans, Spans):
        return kind(spans, *words, device=device, **named)
    key = (kind, *words, device, *named.values())
    if key not in spans.known:
        made = spans.known[key] = kind(spans, *words, device=device, **named)
        made.settings = words, {"device": device, **named}
    found: PackedRows = spans.known[key]
    return found


class PackedRows:
    """Rows that attend one by one; neighbours of equal length share a call.

    spans     of the rows; `block` makes attention block-causal, `window` limits it to so many positions on each side
    rotary    how many dimensions of a head are rotated
    dtype     of the activations; with `wide`, rotation is in float32 regardless (as in LLaDA)
    layers    the number of layers
    position    int64 [N], of each token in its row
    has_before  int64 [N], 0 for the first token of each span, 1 for all others
    settings    what `packed_rows` was called with, besides the spans
    """

    settings: tuple[tuple[Any, ...], dict[str, Any]]

    def __init__(
        self, spans: Sequence[Span], rotary: int, theta: float, *, device: torch.device, dtype: torch.dtype,
        wide: bool = False, block: int | None = None, window: int | None = None, layers: int = 1,
    ) -> None:  # fmt: skip
        # Not `spans` itself, which may refer to these rows: a reference cycle would not be freed at once.
        self.spans, self.device, self.layers = tuple(spans), device, layers
        self.block, self.window = block, window
        inside = torch.cat([torch.arange(len(span)) for span in self.spans])
        position = torch.cat([torch.arange(*part) for span in self.spans for part in span.stretches()])
        self.position, self.has_before = self._lay_out(dtype, position, inside.clamp(max=1))
        frequency = 1.0 / theta ** (torch.arange(0, rotary, 2, device=device).float() / rotary)
        angle = (self.position.float()[:, None] * frequency).repeat(1, 2)[:, None, :]
        kind = torch.float32 if wide else dtype
        self.cos, self.sin = angle.cos().to(kind), angle.sin().to(kind)

    def _lay_out(self, dtype: torch.dtype, *tables: Tensor) -> Sequence[Tensor]:
        """Prepare for attention; returns the tables on the device."""
        plain = self.block is self.window is None and not any(span.cache or span.shadow[1] for span in self.spans)
        lengths = groupby(len(span) for span in self.spans)
        self.runs = [(len(list(rows)), length) for length, rows in lengths] if plain else None
        return tables

    @cached_property
    def masks(self) -> list[Tensor | None]:
        """The visible keys of each row: see `_visible`."""
        return [_visible(span, self.block, self.window, self.device) for span in self.spans]

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary embedding of q [N, H, D] and k [N, KV, D]; dimensions beyond the rotary ones pass through."""
        turns = self.turns(q.shape[-1])
        return turned(q, turns), turned(k, turns)

    def turns(self, size: int) -> Turns:
        """For heads of `size` dimensions."""
        return Turns(self.cos, self.sin, None)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, pair: Tensor | None = None) -> Tensor:
        """Attention within each row: q, k, v, already rotated, and `pair`, all as in `Heads` -> [N, H * D]."""
        mixed = self._mixed(layer, q, k, v, pair)
        if any(span.attention is not None for span in self.spans):
            self._show(layer, q, k)
        return mixed

    def _mixed(self, layer: int, q: Tensor, k: Tensor, v: Tensor, pair: Tensor | None) -> Tensor:
        sizes = [rows * length for rows, length in self.runs] if self.runs else [len(span) for span in self.spans]
        parts = zip(*(torch.split(x, sizes) for x in (q, k, v)), strict=True)
        if self.runs:
            mixed = [
                _attention(*(x.unflatten(0, run) for x in part)).flatten(0, 1)
                for run, part in zip(self.runs, parts, strict=True)
            ]
        else:
            mixed = [self._one(layer, *row) for row in zip(self.spans, self.masks, parts, strict=True)]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    @staticmethod
    def _one(layer: int, span: Span, mask: Tensor | None, part: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """A single row, against its cache if it has one."""
        q, k, v = part
        if span.cache is not None:
            own = len(k) - (span.shadow[1] - span.shadow[0])
            held = [x[: span.reach] for x in span.cache.write(layer, span.start, k[:own], v[:own])]
            k, v = held if own == len(k) else (torch.cat(x) for x in zip(held, (k[own:], v[own:]), strict=True))
        return _attention(q[None], k[None], v[None], mask)[0]

    def _show(self, layer: int, q: Tensor, k: Tensor) -> None:
        """Fill the requested attention maps, row by row, so that neighbours do not matter."""
        sizes = [len(span) for span in self.spans]
        for span, mask, mine, own in zip(self.spans, self.masks, *(torch.split(x, sizes) for x in (q, k)), strict=True):
            asked = span.attention
            if asked is not None and asked.wants(layer, self.layers):
                keys = own if span.cache is None else span.cache.held(layer)[0][: span.reach]
                here = slice(asked.start - span.start, asked.stop - span.start)
                weights = _attention_weights(mine[here], keys, None if mask is None else mask[here])
                asked.add(weights[:, :, asked.start : asked.stop])


class DeviceRows(PackedRows):
    """Rows that attend all at once: the positions of their tokens and keys are computed on the host, for one upload."""

    known: Turns | None = None

    def _lay_out(self, dtype: torch.dtype, *tables: Tensor) -> Sequence[Tensor]:
        lanes, offset = dict[Any, Lane](), 0
        for span in self.spans:
            store, masked = span.cache.store if span.cache else None, _is_masked(span, self.block, self.window)
            key = id(store), masked
            lanes[key] = lane = lanes.get(key) or Lane(store, masked=masked, device=self.device, dtype=dtype)
            lane.add(span, offset)
            offset += len(span)
        self.lanes = list(lanes.values())
        every = Tables(tables)
        for lane in self.lanes:
            lane.prepare(every, alone=len(self.lanes) == 1)
        found = every.upload(self.device)
        for lane in self.lanes:
            lane.finish(found, self.block, self.window)
        return found[: len(tables)]

    def of(self, spans: Spans) -> DeviceRows:
        """The same for other spans."""
        words, named = self.settings
        made = DeviceRows(spans, *words, **named)
        made.settings = self.settings
        if self.known is not None:
            made.turns(self.known.cos.shape[-1])
        return made

    def fixed(self) -> tuple[Hashable, list[Tensor]]:
        """Numbers that attention depends on, and its tables on the device.

        If the numbers and the shapes of the tables are equal, copying the tables of one into another replaces its rows.
        """
        lanes, turns = [lane.fixed() for lane in self.lanes], () if self.known is None else self.known
        tables = [each for each in (self.position, self.has_before, self.cos, self.sin, *turns) if each is not None]
        return tuple(numbers for numbers, _ in lanes), [*tables, *(each for _, more in lanes for each in more)]

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rotates queries and keys at once; rounds only the result."""
        if self.device.type != "cuda":
            return super().rotate(q, k)
        x = torch.cat([q, k], dim=1)
        turn_into(x, x, self.turns(x.shape[-1]))
        return x[:, : q.shape[1]], x[:, q.shape[1] :]

    def turns(self, size: int) -> Turns:
        """The rotation with partners, as wide as a head, if all heads are rotated at once."""
        if self.device.type != "cuda":
            return super().turns(size)
        if self.known is None:
            half, turning = self.cos.shape[-1] // 2, self.cos.shape[-1]
            partner = torch.arange(size, device=self.device)
            partner[:turning] = partner[:turning].roll(half)
            sin = torch.cat([-self.sin[..., :half], self.sin[..., half:]], dim=-1)
            still = (0, size - turning)  # dimensions that are not rotated: cosine 1, sine 0
            self.known = Turns(F.pad(self.cos, still, value=1.0), F.pad(sin, still), partner)
        return self.known

    def _mixed(self, layer: int, q: Tensor, k: Tensor, v: Tensor, pair: Tensor | None) -> Tensor:
        if len(self.lanes) == 1:
            return self.lanes[0].attend(layer, q, k, v, pair).flatten(1)
        mixed = q.new_empty(q.shape)
        for lane in self.lanes:
            mixed.index_copy_(0, lane.tokens, lane.attend(layer, q, k, v, pair))
        return mixed.flatten(1)


def _is_masked(span: Span, block: int | None, window: int | None) -> bool:
    """Whether any position of the span does not see everything up to `reach`."""
    causal = block is not None and (span.start + span.padding) // block != (span.reach - 1 + span.padding) // block
    near = window is not None and max(span.stop - 1, span.reach - 1 - span.start) > window
    return causal or near or span.shadow[1] > 0


def _visible(span: Span, block: int | None, window: int | None, device: torch.device) -> Tensor | None:
    """bool [span, keys]: the keys that each position sees (see `Span`). None: full attention.

    block   only its own block and what is before it
    window  only this many positions to each side
    """
    if not _is_masked(span, block, window):
        return None
    size = span.shadow[1] - span.shadow[0]
    query = torch.cat([torch.arange(*part, device=device) for part in span.stretches()])
    keys = torch.cat([torch.arange(span.start, device=device), query])
    query, keys = query + span.padding, keys + span.padding
    seen = torch.ones(len(query), len(keys), dtype=torch.bool, device=device)
    if block is not None:
        seen &= keys // block <= query[:, None] // block
    if window is not None:
        seen &= (keys - query[:, None]).abs() <= window
    if size:
        seen[:-size, -size:] = False
        seen[-size:, :-size] &= keys[:-size] != query[-size:, None]
    return seen


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """[B, T, H, D] and keys and values [B, S, KV, D] -> [B, T, H * D]."""
    grouped = q.shape[2] != k.shape[2]
    mixed = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, grouped=grouped)
    return mixed.transpose(1, 2).flatten(2)


def _attention_weights(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """Attention probabilities, which fused kernels do not return: [T, H, D], keys [S, KV, D] -> float32 [H, T, S]."""
    queries = q.float().transpose(0, 1).reshape(k.shape[1], -1, q.shape[2])  # heads that share keys are adjacent
    scores = (queries @ k.float().permute(1, 2, 0)).view(-1, len(q), len(k)) * q.shape[2] ** -0.5
    return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -torch.inf), dim=2)
