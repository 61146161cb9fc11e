"""Rows that attend in one call on a device: their index tables, computed on the host, and the call itself."""

from __future__ import annotations

import functools
import importlib
import inspect
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from tacg.cache import Store
    from tacg.models.base import Span

ROUNDED = 64  # the longest row is announced to the kernel as a multiple of this, so that few numbers occur
VARLEN_TYPES = {torch.bfloat16, torch.float16}


class Tables:
    """Integers that go to the device in one upload. `add` returns the index of a table there."""

    def __init__(self, parts: Iterable[Tensor] = ()) -> None:
        self.parts = list(parts)

    def add(self, values: Tensor | list[int]) -> int:
        """Add a table."""
        self.parts.append(torch.as_tensor(values, dtype=torch.int64))
        return len(self.parts) - 1

    def upload(self, device: torch.device) -> tuple[Tensor, ...]:
        """All of them, on the device."""
        return torch.split(torch.cat(self.parts).to(device), [len(part) for part in self.parts])


class Lane:
    """Rows of a forward that share a store of keys (or have none), and that all have full attention or all do not.

    tokens  int64 [T], the tokens of the forward that belong to these rows
    """

    tokens: Tensor

    def __init__(self, store: Store | None, *, masked: bool, device: torch.device, dtype: torch.dtype) -> None:
        self.store, self.masked = store, masked
        self.fused = not masked and has_varlen(device, dtype)
        self.spans: list[Span] = []
        self.offsets: list[int] = []
        self.names: dict[str, int] = {}
        self.at: dict[str, Tensor] = {}

    def add(self, span: Span, offset: int) -> None:
        """A row whose tokens begin at `offset`."""
        self.spans.append(span)
        self.offsets.append(offset)

    def prepare(self, tables: Tables, *, alone: bool) -> None:
        """Add the tables that are needed on the device."""
        spans = self.spans
        self.lengths = [len(span) for span in spans]
        self.shadows = [span.shadow[1] - span.shadow[0] for span in spans]
        self.reaches = [
            span.reach + shadow if span.cache else length
            for span, length, shadow in zip(spans, self.lengths, self.shadows, strict=True)
        ]
        self.alone, own = alone, [n - shadow for n, shadow in zip(self.lengths, self.shadows, strict=True)]
        given = {} if alone else {"tokens": _ranges(self.offsets, self.lengths)}
        if self.store is not None:
            places = [span.cache.slot * self.store.room + span.start for span in spans if span.cache]
            given["places"] = _ranges(places, own)
            if not alone or any(self.shadows):
                given["written"] = _ranges(self.offsets, own)
        given |= self._ends() if self.fused else self._padding()
        self.names = {name: tables.add(values) for name, values in given.items()}

    def _ends(self) -> dict[str, Any]:
        """Where queries and keys of each row begin, and how many keys count."""
        ends = {"queries": [0, *accumulate(self.lengths)]}
        if self.store is None:
            return ends
        starts = [span.cache.slot * self.store.room for span in self.spans if span.cache]
        return {**ends, "keys": [*starts, self.store.rows * self.store.room], "used": self.reaches}

    def _padding(self) -> dict[str, Any]:
        """The layout if all rows are padded to the longest."""
        spans, count, width, reach = self.spans, len(self.spans), max(self.lengths), max(self.reaches)
        given: dict[str, Any] = {"reaches": self.reaches}
        if min(self.lengths) < width:
            given["into"] = _ranges([row * width for row in range(count)], self.lengths)
        fresh = self.lengths if self.store is None else self.shadows
        behind = [row * reach + keys - new for row, (keys, new) in enumerate(zip(self.reaches, fresh, strict=True))]
        if self.store is not None:
            starts = [span.cache.slot * self.store.room for span in spans if span.cache]
            ruler = torch.arange(reach).clamp(max=self.store.room - 1)
            given["held"] = (torch.tensor(starts)[:, None] + ruler).flatten()
        if any(fresh) and not (self.store is None and min(self.lengths) == width):
            given["behind"] = _ranges(behind, fresh)
            sources = [offset + n - new for offset, n, new in zip(self.offsets, self.lengths, fresh, strict=True)]
            given["fresh"] = _ranges(sources, fresh)
        if self.masked:
            positions = [torch.cat([torch.arange(*part) for part in span.stretches()]) + span.padding for span in spans]
            known = [
                torch.cat([torch.arange(span.start) + span.padding, here])
                for span, here in zip(spans, positions, strict=True)
            ]
            given["query_position"] = torch.nn.utils.rnn.pad_sequence(positions, batch_first=True).view(-1)
            given["key_position"] = torch.nn.utils.rnn.pad_sequence(known, batch_first=True).view(-1)
            given["shadows"], given["lengths"] = self.shadows, self.lengths
        return given

    def finish(self, tables: tuple[Tensor, ...], block: int | None, window: int | None) -> None:
        """Called with the tables on the device."""
        self.at = {name: tables[number] for name, number in self.names.items()}
        if not self.alone:
            self.tokens = self.at["tokens"]
        if self.fused:
            self.at = {name: at.int() if name in ("queries", "keys", "used") else at for name, at in self.at.items()}
        else:
            self.mask = self._seen(block, window)

    def _seen(self, block: int | None, window: int | None) -> Tensor | None:
        """bool [B, 1, T, S]: the keys that each position sees (see `Span`). None: full attention."""
        if not self.masked and min(self.reaches) == max(self.reaches):
            return None
        count, width, reach = len(self.spans), max(self.lengths), max(self.reaches)
        device = self.at["reaches"].device
        ruler, reaches = torch.arange(max(reach, width), device=device), self.at["reaches"][:, None, None]
        seen = (ruler[:reach] < reaches).expand(-1, width, -1)
        if self.masked:
            query = self.at["query_position"].view(count, width, 1)
            key = self.at["key_position"].view(count, 1, reach)
            if block is not None:
                seen = seen & (key // block <= query // block)
            if window is not None:
                seen = seen & ((key - query).abs() <= window)
            if any(self.shadows):
                shadow, length = self.at["shadows"][:, None, None], self.at["lengths"][:, None, None]
                apart = ruler[:width, None] >= length - shadow
                extra = ruler[:reach] >= reaches - shadow
                seen = seen & torch.where(apart, extra | (key != query), ~extra)
        return seen[:, None]

    def longest(self) -> tuple[int, int]:
        """The most queries and keys of a row; for the kernel that takes rows as they are, an upper bound."""
        longest, reach = max(self.lengths), max(self.reaches)
        return (_rounded(longest), _rounded(reach)) if self.fused else (longest, reach)

    def fixed(self) -> tuple[Hashable, list[Tensor]]:
        """See `DeviceRows.fixed`."""
        room = () if self.store is None else (self.store.rows, self.store.room)
        numbers = (self.fused, self.masked, self.alone, len(self.spans), self.longest(), room, tuple(self.at))
        mask = None if self.fused else self.mask
        if mask is not None and not self.masked:
            mask = mask[:, :, :1]  # all positions of a row see the same keys, in the same memory
        return (*numbers, mask is None), [*self.at.values(), *([] if mask is None else [mask])]

    # -- attention -------------------------------------------------------------------------------------------------

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, pair: Tensor | None) -> Tensor:
        """q [N, H, D], k and v [N, KV, D] of the whole forward -> [T, H, D] of this lane's tokens.

        pair  keys and values in one tensor [N, 2 * KV, D], if there is one
        """
        mine = q if self.alone else q[self.tokens]
        held = None
        if self.store is not None:
            pair = torch.cat([k, v], dim=1) if pair is None else pair
            written = pair[self.at["written"]] if "written" in self.at else pair
            held = self.store.write(layer, self.at["places"], written)
        if not self.fused:
            return self._padded(mine, k, v, held)
        if held is None:
            held = (k, v) if self.alone else (k[self.tokens], v[self.tokens])
        queries = self.at["queries"]
        made: Tensor = varlen_kernel()(
            mine, *held, queries, self.at.get("keys", queries), *self.longest(),
            enable_gqa=q.shape[1] != k.shape[1], seqused_k=self.at.get("used"),
        )  # fmt: skip
        return made

    def _padded(self, q: Tensor, k: Tensor, v: Tensor, held: tuple[Tensor, Tensor] | None) -> Tensor:
        """Pad all rows to the longest: for masks, and where PyTorch's kernel for unequal rows is not available."""
        count, width, into = len(self.spans), max(self.lengths), self.at.get("into")
        queries = q if into is None else q.new_zeros(count * width, *q.shape[1:]).index_copy_(0, into, q)
        keys, values = (self._keys(x, None if held is None else held[i]) for i, x in enumerate((k, v)))
        made = F.scaled_dot_product_attention(
            queries.reshape(count, width, *q.shape[1:]).transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2),
            attn_mask=self.mask, enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        made = made.transpose(1, 2).flatten(0, 1)
        return made if into is None else made[into]

    def _keys(self, fresh: Tensor, held: Tensor | None) -> Tensor:
        """[B, S, KV, D], from the store, from this forward, or both."""
        size = len(self.spans), max(self.reaches)
        if held is not None:
            keys = held[self.at["held"]]
        elif "behind" in self.at:
            keys = fresh.new_zeros(size[0] * size[1], *fresh.shape[1:])
        else:
            return (fresh if self.alone else fresh[self.tokens]).reshape(*size, *fresh.shape[1:])
        if "behind" in self.at:
            keys.index_copy_(0, self.at["behind"], fresh[self.at["fresh"]])
        return keys.view(*size, *fresh.shape[1:])


def _rounded(number: int) -> int:
    return -(-number // ROUNDED) * ROUNDED


def _ranges(starts: list[int], lengths: list[int]) -> Tensor:
    """int64: the ranges from each start with the given lengths, concatenated."""
    return torch.cat([torch.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)])


def has_varlen(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether PyTorch has a kernel for rows of unequal length: in new releases, on NVIDIA since Ampere, in 16 bits."""
    if device.type != "cuda" or torch.version.hip or dtype not in VARLEN_TYPES or varlen_kernel() is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


@functools.cache
def varlen_kernel() -> Any:
    """PyTorch's attention for packed rows over a cache; None in releases that do not support a cache."""
    try:
        kernel = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except ImportError:
        return None
    return kernel if {"seqused_k", "enable_gqa"} <= inspect.signature(kernel).parameters.keys() else None
