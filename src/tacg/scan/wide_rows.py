"""Wide rows on a CPU: processed in place, in runs of a few neighbouring rows, with reused buffers."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tacg.scan.reference import wide_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

WIDE = 1 << 14  # rows with at least this many values are processed in place
AT_ONCE = max(2, torch.get_num_threads())  # rows per softmax call: one per core
TOGETHER = 4 * AT_ONCE  # rows per tile, or a multiple of it: smaller tiles leave the second core idle
ROOMY = 1 << 17  # values per row up to which larger tiles still fit the cache
CHUNK = 512  # maxima are first taken over chunks of this size; the index is found later

_kept = threading.local()


@dataclass(frozen=True, slots=True)
class ScanPiece:
    """Some positions: `at` in the whole list, `row` in the logits, `slot` in the store; slices give views."""

    at: slice
    row: slice | Tensor
    slot: slice | Tensor
    first: bool | Tensor  # one value for all, or one per position


def wide_pieces(size: int, rows: Tensor | None, slots: Tensor, first: Tensor | None) -> Iterator[ScanPiece]:
    """Runs of neighbouring rows, a few at a time, either all first or none."""
    count = len(slots)
    news = [False] * count if first is None else first.tolist()
    keys = list(zip(range(count) if rows is None else rows.tolist(), slots.tolist(), news, strict=True))
    start, most = 0, _at_a_time(size)
    for stop in range(1, count + 1):
        (row, slot, new), gap = keys[start], stop - start
        if gap == most or stop == count or keys[stop] != (row + gap, slot + gap, new):
            yield ScanPiece(slice(start, stop), slice(row, row + gap), slice(slot, slot + gap), new)
            start = stop


def kept_buffer(name: str, like: Tensor) -> Tensor:
    """A buffer for rows like these, in at least float32, reused between calls."""
    rows, size = like.shape
    kind = wide_dtype(like.dtype)
    found: Tensor | None = getattr(_kept, name, None)
    if found is None or found.shape[1] != size or found.dtype != kind:
        with torch.inference_mode(False):  # usable in any mode
            found = torch.empty(_at_a_time(size), size, dtype=kind, device=like.device)
        setattr(_kept, name, found)
    return found[:rows]


def _at_a_time(size: int) -> int:
    """How many rows are processed at a time."""
    return TOGETHER * max(1, ROOMY // size)


def in_pairs(
    logits: Tensor, rows: Tensor, reference: Tensor, slots: Tensor
) -> Iterator[tuple[slice, list[tuple[slice, Tensor, Tensor]]]]:
    """Logits and reference of the positions, in groups: the slice of the group, and row pairs (slice within, z, past).

    Any two rows form a view with a stride. So each core works on one row, and on the same row in all operations.
    Otherwise rows would be mixed by all cores and then move between cores for softmax.
    """
    places = list(zip(rows.tolist(), slots.tolist(), strict=True))
    for start in range(0, len(places), AT_ONCE):
        group = places[start : start + AT_ONCE]
        half = -(-len(group) // 2)
        pairs = []
        for first, one in enumerate(group[:half]):
            other = group[first + half] if first + half < len(group) else one
            z, past = (_pair(of, i, j) for of, i, j in zip((logits, reference), one, other, strict=True))
            pairs.append((slice(first, len(group), half), z, past))
        yield slice(start, start + len(group)), pairs


def _pair(rows: Tensor, one: int, other: int) -> Tensor:
    """Two rows [2, V], a view if they are in ascending order; one row [1, V] if they are the same."""
    if other == one:
        return rows[one : one + 1]
    return rows[one :: other - one][:2] if other > one else rows[[one, other]]


def chunk_maxima(posterior: Tensor, shares: Tensor) -> None:
    """Write the maximum of every `CHUNK` values of the rows [K, V] into shares [K, chunks]."""
    whole = posterior.shape[1] // CHUNK
    torch.amax(posterior[:, : whole * CHUNK].view(-1, whole, CHUNK), dim=2, out=shares[:, :whole])
    if whole < shares.shape[1]:
        torch.amax(posterior[:, whole * CHUNK :], dim=1, out=shares[:, -1])


def inside_chunks(logits: Tensor, rows: Tensor | None, chunk: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk of logits per row, [P, CHUNK], and the index of its first value, [P]."""
    start = (chunk * CHUNK).clamp(max=logits.shape[1] - CHUNK)  # the last chunk may overlap its neighbour
    return logits.unfold(1, CHUNK, 1)[torch.arange(len(chunk)) if rows is None else rows, start], start
