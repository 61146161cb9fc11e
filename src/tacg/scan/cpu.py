"""The scan on a CPU: `reference.py` by the operations that are fast there, on memory that stays in the cache.

What was measured (docs/roofline.md): the exponential inside `softmax` is the cheapest there is; `amax` runs at the
speed of memory and `max` with indices seven times slower; gathering rows by index costs more than all the arithmetic;
fresh memory for every intermediate result costs as much again. So wide rows are worked on in place, a few at a time,
run by run of neighbours, in two buffers that are kept. Narrow rows are gathered and done at once.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tacg.scan.reference import SMOOTHING, SUPPRESSED, at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

WIDE = 1 << 14  # values of a row from which on it is worked on in place
TOGETHER = 4  # wide rows at a time
CHUNK = 512  # values whose maximum is taken before anybody asks which of them it was
NOTHING = torch.tensor(SMOOTHING, dtype=torch.float64).log().item()


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the positions: `at` of all, `row` of the logits, `slot` of the store; views where they are slices."""

    at: slice
    row: slice | Tensor
    slot: slice | Tensor
    first: bool | Tensor  # of all of them alike, or by position

    def __len__(self) -> int:
        return self.at.stop - self.at.start


def read(
    logits: Tensor, rows: Tensor | None, proposal: Tensor | None, names: frozenset[str], previous: Tensor | None,
    slots: Tensor, first: Tensor,
) -> dict[str, Tensor]:  # fmt: skip
    """As `reference.read`."""
    parts = []
    for piece in _pieces(logits.shape[1], rows, slots, first):
        z, posterior = _posterior(logits[piece.row])
        peak, best = highest(z)
        token = best if proposal is None else proposal[piece.at]
        found = {"token": token, "peak": peak, "confidence": at(posterior, token)}
        if "margin" in names:
            found["margin"] = _margin(posterior, best)
        if "entropy" in names:
            found["entropy"] = _entropy(z, posterior, peak, best)
        if previous is not None:
            found["kl"] = _divergence(posterior, previous, piece)
        parts.append(found)
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def contrast(
    logits: Tensor, rows: Tensor, reference: Tensor, slots: Tensor, token: Tensor, w: float
) -> tuple[Tensor, Tensor]:
    """As `reference.contrast`."""
    before, readout = [], []
    for piece in _pieces(logits.shape[1], rows, slots, None):
        z, ref = (_copied(x[where]) for x, where in ((logits, piece.row), (reference, piece.slot)))
        z -= z.amax(dim=1, keepdim=True)
        ref -= ref.amax(dim=1, keepdim=True)
        mine = token[piece.at]
        before.append(at(ref.softmax(dim=1), mine))
        readout.append(at(torch.lerp(ref, z, 1.0 + w, out=ref).softmax(dim=1), mine))
    return torch.cat(before), torch.cat(readout)


def follow(
    store: Tensor, slots: Tensor, values: Tensor, rows: Tensor, offset: Tensor | None, first: Tensor, beta: float
) -> None:
    """As `reference.follow`."""
    for piece in _pieces(values.shape[1], rows, slots, first):
        fresh = values[piece.row]
        if offset is not None:
            fresh = _shifted(fresh, offset[piece.at]).clamp_min_(SUPPRESSED)
        old = store[piece.slot]  # in place if it is a view
        if piece.first is True:
            old.copy_(fresh)
        elif piece.first is False and old.dtype == fresh.dtype:
            old.lerp_(fresh, 1.0 - beta)
        else:
            wide = fresh.to(torch.promote_types(fresh.dtype, torch.float32))
            mixed = torch.lerp(old.to(wide.dtype), wide, 1.0 - beta)
            old.copy_(mixed if piece.first is False else torch.where(piece.first[:, None], wide, mixed))
        if not isinstance(piece.slot, slice):
            store[piece.slot] = old


def _pieces(size: int, rows: Tensor | None, slots: Tensor, first: Tensor | None) -> Iterator[Piece]:
    """Narrow rows all at once; wide ones by runs of neighbours, a few at a time, all first or all not."""
    count = len(slots)
    if size < WIDE:
        some = first is not None and bool(first.any())
        yield Piece(slice(0, count), slice(None) if rows is None else rows, slots, first if some else False)
        return
    place = list(range(count)) if rows is None else rows.tolist()
    keys = list(zip(place, slots.tolist(), [False] * count if first is None else first.tolist(), strict=True))
    start = 0
    for stop in range(1, count + 1):
        row, slot, new = keys[start]
        gap = stop - start
        if gap == TOGETHER or stop == count or keys[stop] != (row + gap, slot + gap, new):
            yield Piece(slice(start, stop), slice(row, row + gap), slice(slot, slot + gap), new)
            start = stop


_kept = threading.local()


def _buffer(name: str, like: Tensor) -> Tensor:
    """Memory for wide rows like these in float32 at least, the same at every call; fresh memory for narrow ones."""
    rows, size = like.shape
    kind = torch.promote_types(like.dtype, torch.float32)
    if size < WIDE:
        return like.new_empty(rows, size, dtype=kind)
    found: Tensor | None = getattr(_kept, name, None)
    if found is None or found.shape[1] != size or found.dtype != kind or found.device != like.device:
        found = like.new_empty(TOGETHER, size, dtype=kind)
        setattr(_kept, name, found)
    return found[:rows]


def _posterior(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The logits in float32 at least, and their softmax."""
    posterior = _buffer("one", logits)
    z = logits if logits.dtype == posterior.dtype else _buffer("two", logits).copy_(logits)
    return z, torch.softmax(z, dim=1, out=posterior)


def _shifted(values: Tensor, offset: Tensor) -> Tensor:
    return torch.sub(values, offset[:, None], out=_buffer("one", values))


def _copied(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32)).clamp_min(SUPPRESSED)


def highest(z: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value of each row [P, V] and its first index, [P] each. NaN wins."""
    size = z.shape[1]
    even = size // CHUNK * CHUNK
    if even < 4 * CHUNK:
        return z.max(dim=1)
    peaks = z[:, :even].reshape(len(z), -1, CHUNK).amax(dim=2)
    if even < size:
        peaks = torch.cat([peaks, z[:, even:].amax(dim=1, keepdim=True)], dim=1)
    peak, chunk = peaks.max(dim=1)
    start = (chunk * CHUNK).clamp(max=size - CHUNK)  # the last chunk may reach back into its neighbour
    inside = z.gather(1, start[:, None] + torch.arange(CHUNK))
    return peak, start + (inside == peak[:, None]).int().argmax(dim=1)


def _margin(posterior: Tensor, best: Tensor) -> Tensor:
    """The largest probability minus the second. The largest is out of the way while the second is looked for."""
    top = at(posterior, best)
    if posterior.shape[1] == 1:
        return top
    posterior.scatter_(1, best[:, None], -1.0)
    second = posterior.amax(dim=1)
    posterior.scatter_(1, best[:, None], top[:, None])
    return top - second


def _entropy(z: Tensor, posterior: Tensor, peak: Tensor, best: Tensor) -> Tensor:
    """-Σ p log p, with log p = z - peak + log p(best)."""
    shifted = torch.sub(z, peak[:, None], out=_buffer("two", z)).clamp_min_(SUPPRESSED)
    mean: Tensor = torch.linalg.vecdot(posterior, shifted)
    return -mean - at(posterior, best).log()


def _divergence(posterior: Tensor, previous: Tensor, piece: Piece) -> Tensor:
    """KL(p_t || p_{t-1}), both smoothed as in KLASS; `previous` is overwritten on the way."""
    smooth = torch.add(posterior, SMOOTHING, out=_buffer("two", posterior)).log_()
    before = previous[piece.slot]  # in place if it is a view
    if piece.first is True:
        before.fill_(NOTHING)
    elif piece.first is not False:
        before.masked_fill_(piece.first[:, None], NOTHING)
    found: Tensor = torch.linalg.vecdot(posterior, before.sub_(smooth).neg_())
    if isinstance(piece.slot, slice):
        before.copy_(smooth)
    else:
        previous[piece.slot] = smooth
    return found
