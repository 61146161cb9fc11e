"""The scan on a CPU: `reference.py` by the operations that are fast there, on memory that stays in the cache.

What was measured (docs/roofline.md): the exponential inside `softmax` is the cheapest there is; `amax` runs at the
speed of memory and `max` with indices seven times slower; gathering rows by index costs more than all the arithmetic;
fresh memory for every intermediate result costs as much again. So wide rows are worked on in place, a few at a time,
run by run of neighbours, in buffers that are kept. Narrow rows are gathered and done at once.
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
TOGETHER = 2 * max(2, torch.get_num_threads())  # rows at a time, or a multiple of it: softmax takes a core for each
ROOMY = 1 << 17  # values for each of them that still stay in the cache
CHUNK = 512  # values whose maximum is taken before anybody asks which of them it was
UNDOABLE = 0.5  # decay from which on an EMA can be followed before its past is asked for
NOTHING = torch.tensor(SMOOTHING, dtype=torch.float64).log().item()


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the positions: `at` of all, `row` of the logits, `slot` of the store; views where they are slices."""

    at: slice
    row: slice | Tensor
    slot: slice | Tensor
    first: bool | Tensor  # of all of them alike, or by position


def read(
    logits: Tensor, rows: Tensor | None, proposal: Tensor | None, names: frozenset[str], previous: Tensor | None,
    slots: Tensor, first: Tensor, store: Tensor | None = None, beta: float = 0.0,
) -> dict[str, Tensor]:  # fmt: skip
    """As `reference.read`. With a `store` it follows in the same pass, while the logits are in the cache.

    Then `contrast` has to look back (`beta`).
    """
    count, size = len(slots), logits.shape[1]
    kind = torch.promote_types(logits.dtype, torch.float32)
    chunks = -(-size // CHUNK) if size >= WIDE else 1
    peaks = logits.new_empty(count, chunks, dtype=kind)
    top = peaks.new_empty(count)
    found = {name: peaks.new_empty(count) for name in names & {"entropy", "kl"}}
    found["confidence"] = top if proposal is None else peaks.new_empty(count)
    for piece in _pieces(size, rows, slots, first):
        z = logits[piece.row]
        posterior = _buffer("one", z)
        z = z if z.dtype == kind else _buffer("two", z).copy_(z)
        torch.softmax(z, dim=1, out=posterior)
        if store is not None:
            _mix(store, piece, _bounded(z), beta)
        _chunk_peaks(z, peaks[piece.at])
        torch.amax(posterior, dim=1, out=top[piece.at])
        if proposal is not None:
            found["confidence"][piece.at] = at(posterior, proposal[piece.at])
        if previous is not None:
            found["kl"][piece.at] = _divergence(z, posterior, peaks[piece.at], top[piece.at], previous, piece)
        if "entropy" in names:  # the last one: z may lie in the buffer that it uses
            found["entropy"][piece.at] = _entropy(z, posterior, peaks[piece.at])
    peak, best, second = _best_two(logits, rows, peaks, second="margin" in names)
    found |= {"token": best if proposal is None else proposal, "peak": peak}
    if second is not None:
        found["margin"] = top * (1.0 - (second - peak).exp())
    return found


def contrast(
    logits: Tensor, rows: Tensor, reference: Tensor, slots: Tensor, token: Tensor, w: float, beta: float | None = None
) -> tuple[Tensor, Tensor]:
    """As `reference.contrast`; `beta` if the reference has followed these logits: past = z + (now - z) / beta."""
    kind = torch.promote_types(logits.dtype, torch.float32)
    before, readout = token.new_empty((2, len(token)), dtype=kind)
    step = _together(logits.shape[1]) if logits.shape[1] >= WIDE else len(token)
    for start in range(0, len(token), step):
        part = slice(start, start + step)
        z, past = _now_and_then(logits, rows[part], reference, slots[part], kind, beta)
        shares = torch.softmax(past, dim=1, out=_buffer("three", past))
        before[part] = at(shares, token[part])
        torch.softmax(past.lerp_(z, 1.0 + w), dim=1, out=shares)  # past + (1 + w) (z - past) = z + w (z - past)
        readout[part] = at(shares, token[part])
    return before, readout


def follow(
    store: Tensor, slots: Tensor, values: Tensor, rows: Tensor, offset: Tensor | None, first: Tensor, beta: float
) -> None:
    """As `reference.follow`; logits are gauged only where the store is narrow: softmax does not care for constants."""
    wide = torch.promote_types(values.dtype, torch.float32)
    for piece in _pieces(values.shape[1], rows, slots, first):
        fresh = values[piece.row]
        fresh = fresh if offset is None else _bounded(fresh)
        if offset is not None and store.dtype != wide:
            fresh = torch.sub(fresh, offset[piece.at, None], out=_buffer("one", fresh))
        elif fresh.dtype != wide:
            fresh = _buffer("one", fresh).copy_(fresh)
        _mix(store, piece, fresh, beta)


def _bounded(z: Tensor) -> Tensor:
    """Without values that no average can be taken with; in float32 at least where there are any."""
    if float(z.amin()) >= SUPPRESSED:  # nearly always, and it takes half the time of bounding
        return z
    return torch.clamp_min(z.to(torch.promote_types(z.dtype, torch.float32)), SUPPRESSED)


def _mix(store: Tensor, piece: Piece, fresh: Tensor, beta: float) -> None:
    """The EMA of a piece, one step on."""
    old = store[piece.slot]  # in place if it is a view
    if piece.first is True:
        old.copy_(fresh)
    elif piece.first is False and old.dtype == fresh.dtype:
        old.lerp_(fresh, 1.0 - beta)
    else:
        mixed = torch.lerp(old.to(fresh.dtype), fresh, 1.0 - beta)
        old.copy_(mixed if piece.first is False else torch.where(piece.first[:, None], fresh, mixed))
    if not isinstance(piece.slot, slice):
        store[piece.slot] = old


def _pieces(size: int, rows: Tensor | None, slots: Tensor, first: Tensor) -> Iterator[Piece]:
    """Narrow rows all at once; wide ones by runs of neighbours, a few at a time, all first or all not."""
    count = len(slots)
    if size < WIDE:
        some = bool(first.any())
        yield Piece(slice(0, count), slice(None) if rows is None else rows, slots, first if some else False)
        return
    keys = list(zip(range(count) if rows is None else rows.tolist(), slots.tolist(), first.tolist(), strict=True))
    start, most = 0, _together(size)
    for stop in range(1, count + 1):
        (row, slot, new), gap = keys[start], stop - start
        if gap == most or stop == count or keys[stop] != (row + gap, slot + gap, new):
            yield Piece(slice(start, stop), slice(row, row + gap), slice(slot, slot + gap), new)
            start = stop


def _together(size: int) -> int:
    """How many wide rows are worked on at a time."""
    return TOGETHER * max(1, ROOMY // size)


_kept = threading.local()


def _buffer(name: str, like: Tensor, kind: torch.dtype | None = None) -> Tensor:
    """Memory for wide rows like these in float32 at least, the same at every call; fresh memory for narrow ones."""
    rows, size = like.shape
    kind = kind or torch.promote_types(like.dtype, torch.float32)
    if size < WIDE:
        return like.new_empty(rows, size, dtype=kind)
    found: Tensor | None = getattr(_kept, name, None)
    if found is None or found.shape[1] != size or found.dtype != kind:
        with torch.inference_mode(False):  # to be of use in any mode
            found = torch.empty(_together(size), size, dtype=kind, device=like.device)
        setattr(_kept, name, found)
    return found[:rows]


def _now_and_then(
    logits: Tensor, rows: Tensor, reference: Tensor, slots: Tensor, kind: torch.dtype, beta: float | None
) -> tuple[Tensor, Tensor]:
    """Logits and reference of some positions, free to be changed: [C, V] each. What `beta` averaged in is undone."""
    if logits.shape[1] < WIDE:
        z, past = logits[rows].to(kind).clamp_min_(SUPPRESSED), reference[slots].to(kind)
        return z, past if beta is None else torch.lerp(z, past, 1.0 / beta)
    z, past = (_buffer(name, logits[: len(rows)], kind) for name in ("one", "two"))
    for now, then, row, slot in zip(z, past, rows.tolist(), slots.tolist(), strict=True):
        if logits.dtype == kind:
            torch.clamp_min(logits[row], SUPPRESSED, out=now)
        else:
            now.copy_(logits[row]).clamp_min_(SUPPRESSED)
        if beta is None:
            then.copy_(reference[slot])
        else:
            torch.lerp(now, reference[slot], 1.0 / beta, out=then)
    return z, past


def _chunk_peaks(z: Tensor, peaks: Tensor) -> None:
    """The maximum of every `CHUNK` values of a row [K, V], into peaks [K, chunks]; narrow rows need none."""
    even = z.shape[1] // CHUNK * CHUNK
    if peaks.shape[1] == 1:
        return
    torch.amax(z[:, :even].view(len(z), -1, CHUNK), dim=2, out=peaks[:, : even // CHUNK])
    if even < z.shape[1]:
        torch.amax(z[:, even:], dim=1, out=peaks[:, -1])


def _best_two(
    logits: Tensor, rows: Tensor | None, peaks: Tensor, *, second: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The largest value of each row, its first index, and the second largest if asked for: [P] each. NaN wins."""
    size, place = logits.shape[1], torch.arange(len(peaks)) if rows is None else rows
    if peaks.shape[1] == 1:
        inside = (logits if rows is None else logits[rows]).to(peaks.dtype)
        peak, best = inside.max(dim=1)
        return peak, best, inside.scatter(1, best[:, None], -torch.inf).amax(dim=1) if second else None
    peak, chunk = peaks.max(dim=1)
    start = (chunk * CHUNK).clamp(max=size - CHUNK)  # the last chunk may reach back into its neighbour
    inside = logits[place[:, None], start[:, None] + torch.arange(CHUNK)].to(peaks.dtype)
    best = (inside == peak[:, None]).int().argmax(dim=1)
    if not second:
        return peak, start + best, None
    near = inside.scatter(1, best[:, None], -torch.inf).amax(dim=1)
    far = peaks.scatter(1, chunk[:, None], -torch.inf).amax(dim=1)
    return peak, start + best, torch.maximum(near, far)


def _entropy(z: Tensor, posterior: Tensor, peaks: Tensor) -> Tensor:
    """-Σ p log p, with log p = z - peak + log p(best)."""
    peak = z.amax(dim=1) if peaks.shape[1] == 1 else peaks.amax(dim=1)
    shifted = torch.sub(z, peak[:, None], out=_buffer("two", z)).clamp_min_(SUPPRESSED)
    mean = _dot(posterior, shifted)
    return -mean - posterior.amax(dim=1).log()


def _divergence(
    z: Tensor, posterior: Tensor, peaks: Tensor, top: Tensor, previous: Tensor, piece: Piece
) -> Tensor:  # fmt: skip
    """KL(p_t || p_{t-1}), both smoothed as in KLASS, as a difference of cross entropies; `previous` moves on.

    Wide rows: max(log p, log ε) instead of log(p + ε), which spares a logarithm a value. It makes a difference where a
    token rises from below ε = 1e-12: its part of the divergence comes out larger, by 6 % at most if it is now above
    1e-6.
    """
    kept = previous[piece.slot]  # in place if it is a view
    if piece.first is True:
        kept.fill_(NOTHING)
    elif piece.first is not False:
        kept.masked_fill_(piece.first[:, None], NOTHING)
    before = _dot(posterior, kept)
    if peaks.shape[1] == 1:
        torch.add(posterior, SMOOTHING, out=kept).log_()
    else:
        normalizer = peaks.amax(dim=1) - top.log()  # the logarithm of what softmax divides by
        torch.sub(z, normalizer[:, None], out=kept).clamp_min_(NOTHING)
    now = _dot(posterior, kept)
    if not isinstance(piece.slot, slice):
        previous[piece.slot] = kept
    return now.sub_(before).clamp_min_(0.0)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """Row by row, [K]. A single row is done twice: alone it would be rounded in another way than among others."""
    many = len(one) > 1
    found: Tensor = torch.linalg.vecdot(one if many else one.expand(2, -1), other if many else other.expand(2, -1))
    return found[: len(one)]
