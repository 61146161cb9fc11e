"""The scan on a CPU: `reference.py` with operations that are fast there, on memory that stays in the cache.

Measured results (docs/roofline.md): `softmax` contains the cheapest exponential; `amax` runs at memory speed, and
`max` with indices is seven times slower (numpy's `argmax` is not); gathering rows by index costs more than all the
arithmetic; allocating memory for every intermediate result costs as much again. So wide rows are processed in place, a
few at a time (`wide_rows.py`). Narrow rows are gathered and processed at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tacg.scan.cpu_measures import divergence, entropy, next_to_best, others
from tacg.scan.memory import put
from tacg.scan.reference import SUPPRESSED, at, share, wide_dtype
from tacg.scan.wide_rows import CHUNK, WIDE, ScanPiece, chunk_maxima, in_pairs, inside_chunks, kept_buffer, wide_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

ALIKE = 1e-5  # relative; shares closer than this, far above rounding, do not show which logit is larger
UNDOABLE = 0.5  # from this decay on, the EMA is updated first and its past recovered when needed


def read(
    logits: Tensor, rows: Tensor | None, proposal: Tensor | None, names: frozenset[str], previous: Tensor | None,
    slots: Tensor, first: Tensor | None, store: Tensor | None = None, beta: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """Like `reference.read`. With a `store`, its EMA is updated in the same pass, while the logits are in the cache.

    `contrast` must then recover the past from it (`beta`). `least`, a number, is then the lowest logit of all.
    """
    count, size = len(slots), logits.shape[1]
    if size < WIDE:
        return _read_narrow(logits, rows, proposal, names, previous, slots, first, store, beta)
    kind = wide_dtype(logits.dtype)
    shares = logits.new_empty(count, -(-size // CHUNK), dtype=kind)  # the largest of every chunk
    found: dict[str, Any] = {name: shares.new_empty(count) for name in names & {"entropy", "kl", "others"}}
    own = None if proposal is None else shares.new_empty(count)
    least = torch.inf
    for piece in wide_pieces(size, rows, slots, first):
        z = logits[piece.row]
        posterior = kept_buffer("one", z)
        z = z if z.dtype == kind else kept_buffer("two", z).copy_(z)
        torch.softmax(z, dim=1, out=posterior)
        if store is not None:
            low = float(z.amin())
            least = min(least, low)
            _mix(store, piece, _bounded(z, low), beta)
        chunk_maxima(posterior, shares[piece.at])
        if own is not None and proposal is not None:
            own[piece.at] = at(posterior, proposal[piece.at])
        if "others" in names:
            found["others"][piece.at] = others(
                posterior, (shares if own is None else own[:, None])[piece.at].amax(dim=1)
            )
        if previous is not None:
            found["kl"][piece.at] = divergence(z, posterior, shares[piece.at], previous, piece)
        if "entropy" in names:  # last, because z may be in the buffer that it uses
            found["entropy"][piece.at] = entropy(z, posterior, shares[piece.at], kept_buffer("two", z))
    if store is not None:
        found["least"] = least
    top, chunk = largest(shares)
    peak, best = _best(logits, rows, shares, top, chunk)
    found |= {"token": best if proposal is None else proposal, "confidence": top if own is None else own, "peak": peak}
    if names & {"margin", "gap"}:
        found |= _ahead(names, top, next_to_best(logits, rows, shares, top, peak, best))
    return found


def _read_narrow(
    logits: Tensor, rows: Tensor | None, proposal: Tensor | None, names: frozenset[str], previous: Tensor | None,
    slots: Tensor, first: Tensor | None, store: Tensor | None, beta: float,
) -> dict[str, Any]:  # fmt: skip
    """`read` of narrow rows, all at once: what counts here is the number of operations."""
    z = logits if rows is None else logits.index_select(0, rows)
    z = z.to(wide_dtype(z.dtype))
    peak, best = largest(z)
    posterior = z.softmax(dim=1)
    (piece,) = _pieces(z.shape[1], rows, slots, first)
    top = posterior.amax(dim=1)
    own = top if proposal is None else at(posterior, proposal)
    found: dict[str, Any] = {"token": best if proposal is None else proposal, "confidence": own, "peak": peak}
    if store is not None:
        found["least"] = float(z.amin())
        _mix(store, piece, _bounded(z, found["least"]), beta)
    if "others" in names:
        found["others"] = others(posterior, own)
    if previous is not None:
        found["kl"] = divergence(z, posterior, top[:, None], previous, piece)
    if "entropy" in names:
        found["entropy"] = entropy(z, posterior, top[:, None], torch.empty_like(z))
    if names & {"margin", "gap"}:
        found |= _ahead(names, top, next_to_best(z, None, top[:, None], top, peak, best))
    return found


def _ahead(names: frozenset[str], top: Tensor, second: Tensor) -> dict[str, Tensor]:
    """The requested ones of margin and gap, from the largest share and the second relative to it."""
    pair = {"margin": top * (1.0 - second), "gap": -second.log().clamp_min(SUPPRESSED)}
    return {name: values for name, values in pair.items() if name in names}


def contrast(
    logits: Tensor, rows: Tensor, reference: Tensor, slots: Tensor, token: Tensor, weight: float,
    beta: float | None = None, least: float | None = None, *, fine: bool = False,
) -> Tensor:  # fmt: skip
    """Like `reference.contrast`; `beta` if the reference already includes these logits: past = z + (now - z) / beta.

    least  the lowest of the logits, as far as `read` has found it
    """
    kind = torch.float64 if fine else wide_dtype(logits.dtype)
    found = token.new_empty(len(token), dtype=kind)
    for part, pairs in _together(logits, rows, reference, slots, least):
        mixed = _buffer("one", logits[: len(token[part])])
        for among, z, past in pairs:
            torch.lerp(z, past, weight if beta is None else weight / beta, out=mixed[among])
        found[part] = share(torch.softmax(mixed, dim=1, out=_buffer("two", mixed)), token[part], fine=fine)
    return found


def follow(
    store: Tensor, slots: Tensor, values: Tensor, rows: Tensor, offset: Tensor | None, first: Tensor | None, beta: float
) -> None:
    """Like `reference.follow`, but logits are shifted only if the store is narrow: softmax ignores constants."""
    wide = wide_dtype(values.dtype)
    for piece in _pieces(values.shape[1], rows, slots, first):
        fresh = values[piece.row]
        fresh = fresh if offset is None else _bounded(fresh)
        if offset is not None and store.dtype != wide:
            fresh = torch.sub(fresh, offset[piece.at, None], out=_buffer("one", fresh))
        elif fresh.dtype != wide:
            fresh = _buffer("one", fresh).copy_(fresh)
        _mix(store, piece, fresh, beta)


def _bounded(z: Tensor, least: float | None = None) -> Tensor:
    """Replace values too low to average (in at least float32, if there are any); `least`: the lowest, if known."""
    if (float(z.amin()) if least is None else least) >= SUPPRESSED:  # nearly always; clamping takes twice as long
        return z
    return torch.clamp_min(z.to(wide_dtype(z.dtype)), SUPPRESSED)


def _mix(store: Tensor, piece: ScanPiece, fresh: Tensor, beta: float) -> None:
    """Advance the EMA of a piece by one step."""
    rows = piece.slot if isinstance(piece.slot, torch.Tensor) else None
    old = store[piece.slot] if rows is None else store.index_select(0, rows)  # in place if it is a view
    if piece.first is True:
        old.copy_(fresh)
    elif piece.first is False and old.dtype == fresh.dtype:
        old.lerp_(fresh, 1.0 - beta)
    else:
        mixed = torch.lerp(old.to(fresh.dtype), fresh, 1.0 - beta)
        old.copy_(mixed if piece.first is False else torch.where(piece.first[:, None], fresh, mixed))
    if rows is not None:
        put(store, rows, old)


def _pieces(size: int, rows: Tensor | None, slots: Tensor, first: Tensor | None) -> Iterator[ScanPiece]:
    """Narrow rows all at once; wide rows in runs of neighbours, a few at a time, either all first or none."""
    if size >= WIDE:
        return wide_pieces(size, rows, slots, first)
    every = slice(None) if rows is None else rows
    return iter([ScanPiece(slice(0, len(slots)), every, slots, False if first is None else first)])


def _buffer(name: str, like: Tensor) -> Tensor:
    """A buffer for rows like these, in at least float32: new for narrow rows, reused between calls for wide ones."""
    if like.shape[1] >= WIDE:
        return kept_buffer(name, like)
    return like.new_empty(like.shape, dtype=wide_dtype(like.dtype))


def _together(
    logits: Tensor, rows: Tensor, reference: Tensor, slots: Tensor, least: float | None
) -> Iterator[tuple[slice, list[tuple[slice, Tensor, Tensor]]]]:
    """Logits and reference of the positions, in groups: the group's slice, and its parts (slice within, z, past)."""
    kind = wide_dtype(logits.dtype)
    if logits.shape[1] < WIDE:
        z, past = logits.index_select(0, rows), reference.index_select(0, slots)
        yield slice(0, len(rows)), [(slice(None), _bounded(z, least).to(kind), past.to(kind))]
        return
    for part, pairs in in_pairs(logits, rows, reference, slots):
        yield part, [(among, _bounded(z, least).to(kind), past.to(kind)) for among, z, past in pairs]


def _best(
    logits: Tensor, rows: Tensor | None, shares: Tensor, top: Tensor, chunk: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The largest logit of each row and its first index, [P] each; NaN wins.

    It is in the chunk with the largest share, unless another chunk's share is almost equal (or all are
    NaN).
    """
    inside, start = inside_chunks(logits, rows, chunk)
    peak, best = largest(inside.to(shares.dtype))
    best += start
    lower = (shares < (top * (1 - ALIKE))[:, None]).sum(dim=1)
    for place in (lower < shares.shape[1] - 1).nonzero().squeeze(1).tolist():
        peak[place], best[place] = logits[place if rows is None else rows[place]].max(dim=0)
    return peak, best


def largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """Like `values.max(dim=1)`, of at least 32 bits: numpy finds the index ten times faster. The first NaN wins."""
    return values.amax(dim=1), torch.from_numpy(values.numpy().argmax(axis=1))
