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

from tacg.scan.reference import SMOOTHING, SUPPRESSED, at, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

WIDE = 1 << 14  # values of a row from which on it is worked on in place
AT_ONCE = max(2, torch.get_num_threads())  # rows that softmax works on at once: a core for each
TOGETHER = 4 * AT_ONCE  # rows between two operations, or a multiple of it: smaller tiles leave the second core idle
ROOMY = 1 << 17  # values for each of them that still stay in the cache
CHUNK = 512  # values whose maximum is taken before anybody asks which of them it was
ALIKE = 1e-5  # shares that differ by less, relatively, say nothing of which logit is larger: far above rounding
UNDOABLE = 0.5  # decay from which on an EMA can be followed before its past is asked for
NOTHING = torch.tensor(SMOOTHING, dtype=torch.float64).log().item()


@dataclass(frozen=True, slots=True)
class ScanPiece:
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
    shares = logits.new_empty(count, chunks, dtype=kind)  # the largest of every chunk
    found = {name: shares.new_empty(count) for name in names & {"entropy", "kl"}}
    own = None if proposal is None else shares.new_empty(count)
    total = torch.empty(count, dtype=torch.float64) if "others" in names else None
    for piece in _pieces(size, rows, slots, first):
        z = logits[piece.row]
        posterior = _buffer("one", z)
        z = z if z.dtype == kind else _buffer("two", z).copy_(z)
        torch.softmax(z, dim=1, out=posterior)
        if store is not None:
            _mix(store, piece, _bounded(z), beta)
        _largest(posterior, shares[piece.at])
        if own is not None and proposal is not None:
            own[piece.at] = at(posterior, proposal[piece.at])
        if total is not None:
            total[piece.at] = posterior.sum(dim=1, dtype=torch.float64)
        if previous is not None:
            found["kl"][piece.at] = _divergence(z, posterior, shares[piece.at], previous, piece)
        if "entropy" in names:  # the last one: z may lie in the buffer that it uses
            found["entropy"][piece.at] = _entropy(z, posterior, shares[piece.at])
    top, chunk = shares.max(dim=1)
    peak, best = _best(logits, rows, shares, top, chunk)
    found |= {"token": best if proposal is None else proposal, "confidence": top if own is None else own, "peak": peak}
    if total is not None:  # in float64 nothing is lost by taking one of the shares off their sum
        found["others"] = (total - found["confidence"]).clamp_min(0.0).to(kind)
    if names & {"margin", "gap"}:
        next_to_best = _next_to_best(logits, rows, shares, top, chunk, peak, best)
        pair = {"margin": top * (1.0 - next_to_best), "gap": -next_to_best.log().clamp_min(SUPPRESSED)}
        found |= {name: values for name, values in pair.items() if name in names}
    return found


def contrast(
    logits: Tensor, rows: Tensor, reference: Tensor, slots: Tensor, token: Tensor, weight: float,
    beta: float | None = None, *, fine: bool = False,
) -> Tensor:  # fmt: skip
    """As `reference.contrast`; `beta` if the reference has followed these logits: past = z + (now - z) / beta."""
    kind = torch.float64 if fine else torch.promote_types(logits.dtype, torch.float32)
    found = token.new_empty(len(token), dtype=kind)
    for part, pairs in _in_pairs(logits, rows, reference, slots):
        mixed = _buffer("one", logits[: len(token[part])])
        for among, z, past in pairs:
            torch.lerp(z, past, weight if beta is None else weight / beta, out=mixed[among])
        found[part] = share(torch.softmax(mixed, dim=1, out=_buffer("two", mixed)), token[part], fine=fine)
    return found


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


def _mix(store: Tensor, piece: ScanPiece, fresh: Tensor, beta: float) -> None:
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


def _pieces(size: int, rows: Tensor | None, slots: Tensor, first: Tensor) -> Iterator[ScanPiece]:
    """Narrow rows all at once; wide ones by runs of neighbours, a few at a time, all first or all not."""
    count = len(slots)
    if size < WIDE:
        some = bool(first.any())
        yield ScanPiece(slice(0, count), slice(None) if rows is None else rows, slots, first if some else False)
        return
    keys = list(zip(range(count) if rows is None else rows.tolist(), slots.tolist(), first.tolist(), strict=True))
    start, most = 0, _together(size)
    for stop in range(1, count + 1):
        (row, slot, new), gap = keys[start], stop - start
        if gap == most or stop == count or keys[stop] != (row + gap, slot + gap, new):
            yield ScanPiece(slice(start, stop), slice(row, row + gap), slice(slot, slot + gap), new)
            start = stop


def _together(size: int) -> int:
    """How many wide rows are worked on at a time."""
    return TOGETHER * max(1, ROOMY // size)


_kept = threading.local()


def _buffer(name: str, like: Tensor) -> Tensor:
    """Memory for wide rows like these in float32 at least, the same at every call; fresh memory for narrow ones."""
    rows, size = like.shape
    kind = torch.promote_types(like.dtype, torch.float32)
    if size < WIDE:
        return like.new_empty(rows, size, dtype=kind)
    found: Tensor | None = getattr(_kept, name, None)
    if found is None or found.shape[1] != size or found.dtype != kind:
        with torch.inference_mode(False):  # to be of use in any mode
            found = torch.empty(_together(size), size, dtype=kind, device=like.device)
        setattr(_kept, name, found)
    return found[:rows]


def _in_pairs(
    logits: Tensor, rows: Tensor, reference: Tensor, slots: Tensor
) -> Iterator[tuple[slice, list[tuple[slice, Tensor, Tensor]]]]:
    """Logits and reference of some positions: which of them, and by pairs of rows (among these, z, past).

    Two rows anywhere are a view: the first, and what is as far behind it as the other. Then a core works on a row, in
    all operations on the same one; rows that were mixed one by one, by all cores, would be handed over to softmax.
    """
    kind, count = torch.promote_types(logits.dtype, torch.float32), len(rows)
    if logits.shape[1] < WIDE:
        yield slice(0, count), [(slice(None), _bounded(logits[rows]).to(kind), reference[slots].to(kind))]
        return
    places = list(zip(rows.tolist(), slots.tolist(), strict=True))
    for start in range(0, count, AT_ONCE):
        group = places[start : start + AT_ONCE]
        half = -(-len(group) // 2)
        pairs = []
        for first, one in enumerate(group[:half]):
            other = group[first + half] if first + half < len(group) else one
            z, past = (_pair(of, i, j) for of, i, j in zip((logits, reference), one, other, strict=True))
            pairs.append((slice(first, len(group), half), _bounded(z).to(kind), past.to(kind)))
        yield slice(start, start + len(group)), pairs


def _pair(rows: Tensor, one: int, other: int) -> Tensor:
    """Two rows [2, V], a view if they are in order; a single one [1, V] if they are the same."""
    if other == one:
        return rows[one : one + 1]
    return rows[one :: other - one][:2] if other > one else rows[[one, other]]


def _largest(posterior: Tensor, shares: Tensor) -> None:
    """The maximum of every `CHUNK` values of a row [K, V], into shares [K, chunks]; of all values of narrow rows."""
    chunks = shares.shape[1]
    whole = posterior.shape[1] // CHUNK if chunks > 1 else 0
    if whole:
        torch.amax(posterior[:, : whole * CHUNK].view(-1, whole, CHUNK), dim=2, out=shares[:, :whole])
    if whole < chunks:
        torch.amax(posterior[:, whole * CHUNK :], dim=1, out=shares[:, -1])


def _inside(logits: Tensor, rows: Tensor | None, chunk: Tensor) -> tuple[Tensor, Tensor]:
    """The logits of a chunk of each row, [P, CHUNK], and the index of their first one, [P]; all of narrow rows."""
    if logits.shape[1] < WIDE:
        return (logits if rows is None else logits[rows]), torch.zeros_like(chunk)
    start = (chunk * CHUNK).clamp(max=logits.shape[1] - CHUNK)  # the last chunk may reach back into its neighbour
    return logits.unfold(1, CHUNK, 1)[torch.arange(len(chunk)) if rows is None else rows, start], start


def _best(
    logits: Tensor, rows: Tensor | None, shares: Tensor, top: Tensor, chunk: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The largest logit of each row and its first index, [P] each; NaN wins.

    It lies in the chunk of the largest share, unless another chunk's is alike (or there are no shares, but NaN).
    """
    inside, start = _inside(logits, rows, chunk)
    peak, best = inside.max(dim=1)
    if shares.shape[1] == 1:
        return peak.to(shares.dtype), best
    best += start
    lower = (shares < (top * (1 - ALIKE))[:, None]).sum(dim=1)
    for place in (lower < shares.shape[1] - 1).nonzero().squeeze(1).tolist():
        peak[place], best[place] = logits[place if rows is None else rows[place]].max(dim=0)
    return peak.to(shares.dtype), best


def _next_to_best(
    logits: Tensor, rows: Tensor | None, shares: Tensor, top: Tensor, chunk: Tensor, peak: Tensor, best: Tensor
) -> Tensor:
    """The second largest share in parts of the largest, [P]: from the best one's own chunk or from all the others."""
    own = chunk if logits.shape[1] < WIDE else best // CHUNK
    inside, start = _inside(logits, rows, own)
    near = inside.to(peak.dtype).scatter(1, (best - start)[:, None], -torch.inf).amax(dim=1)
    far = shares.scatter(1, own[:, None], 0.0).amax(dim=1)
    return torch.maximum((near - peak).exp(), far / top)


def _entropy(z: Tensor, posterior: Tensor, shares: Tensor) -> Tensor:
    """-Σ p log p, with log p = z - peak + log p(best)."""
    shifted = torch.sub(z, z.amax(dim=1, keepdim=True), out=_buffer("two", z)).clamp_min_(SUPPRESSED)
    return -_dot(posterior, shifted) - shares.amax(dim=1).log()


def _divergence(z: Tensor, posterior: Tensor, shares: Tensor, previous: Tensor, piece: ScanPiece) -> Tensor:
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
    if shares.shape[1] == 1:
        torch.add(posterior, SMOOTHING, out=kept).log_()
    else:
        normalizer = z.amax(dim=1) - shares.amax(dim=1).log()  # the logarithm of what softmax divides by
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
