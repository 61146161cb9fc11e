"""Wide rows on a CPU: worked on in place, a few at a time, run by run of neighbours, in buffers that are kept."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

WIDE = 1 << 14  # values of a row from which on it is worked on in place
AT_ONCE = max(2, torch.get_num_threads())  # rows that softmax works on at once: a core for each
TOGETHER = 4 * AT_ONCE  # rows between two operations, or a multiple of it: smaller tiles leave the second core idle
ROOMY = 1 << 17  # values for each of them that still stay in the cache
CHUNK = 512  # values whose maximum is taken before anybody asks which of them it was

_kept = threading.local()


@dataclass(frozen=True, slots=True)
class ScanPiece:
    """Some of the positions: `at` of all, `row` of the logits, `slot` of the store; views where they are slices."""

    at: slice
    row: slice | Tensor
    slot: slice | Tensor
    first: bool | Tensor  # of all of them alike, or by position


def wide_pieces(size: int, rows: Tensor | None, slots: Tensor, first: Tensor) -> Iterator[ScanPiece]:
    """Runs of neighbours, a few rows at a time, all first or all not."""
    count = len(slots)
    keys = list(zip(range(count) if rows is None else rows.tolist(), slots.tolist(), first.tolist(), strict=True))
    start, most = 0, _at_a_time(size)
    for stop in range(1, count + 1):
        (row, slot, new), gap = keys[start], stop - start
        if gap == most or stop == count or keys[stop] != (row + gap, slot + gap, new):
            yield ScanPiece(slice(start, stop), slice(row, row + gap), slice(slot, slot + gap), new)
            start = stop


def kept_buffer(name: str, like: Tensor) -> Tensor:
    """Memory for rows like these in float32 at least, the same at every call."""
    rows, size = like.shape
    kind = torch.promote_types(like.dtype, torch.float32)
    found: Tensor | None = getattr(_kept, name, None)
    if found is None or found.shape[1] != size or found.dtype != kind:
        with torch.inference_mode(False):  # to be of use in any mode
            found = torch.empty(_at_a_time(size), size, dtype=kind, device=like.device)
        setattr(_kept, name, found)
    return found[:rows]


def _at_a_time(size: int) -> int:
    """How many rows are worked on at a time."""
    return TOGETHER * max(1, ROOMY // size)


def in_pairs(
    logits: Tensor, rows: Tensor, reference: Tensor, slots: Tensor
) -> Iterator[tuple[slice, list[tuple[slice, Tensor, Tensor]]]]:
    """Logits and reference of some positions: which of them, and by pairs of rows (among these, z, past).

    Two rows anywhere are a view: the first, and what is as far behind it as the other. Then a core works on a row, in
    all operations on the same one; rows that were mixed one by one, by all cores, would be handed over to softmax.
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
    """Two rows [2, V], a view if they are in order; a single one [1, V] if they are the same."""
    if other == one:
        return rows[one : one + 1]
    return rows[one :: other - one][:2] if other > one else rows[[one, other]]


def chunk_maxima(posterior: Tensor, shares: Tensor) -> None:
    """The maximum of every `CHUNK` values of a row [K, V], into shares [K, chunks]."""
    whole = posterior.shape[1] // CHUNK
    torch.amax(posterior[:, : whole * CHUNK].view(-1, whole, CHUNK), dim=2, out=shares[:, :whole])
    if whole < shares.shape[1]:
        torch.amax(posterior[:, whole * CHUNK :], dim=1, out=shares[:, -1])


def inside_chunks(logits: Tensor, rows: Tensor | None, chunk: Tensor) -> tuple[Tensor, Tensor]:
    """The logits of a chunk of each row, [P, CHUNK], and the index of their first one, [P]."""
    start = (chunk * CHUNK).clamp(max=logits.shape[1] - CHUNK)  # the last chunk may reach back into its neighbour
    return logits.unfold(1, CHUNK, 1)[torch.arange(len(chunk)) if rows is None else rows, start], start
