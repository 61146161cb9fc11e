"""The scan on a CPU: `reference.py` with operations that are fast there, on memory that stays in the cache.

Measured results (docs/roofline.md): `softmax` contains the cheapest exponential; `amax` runs at memory speed, and
`max` with indices is seven times slower; gathering rows by index costs more than all the arithmetic; allocating memory
for every intermediate result costs as much again. So wide rows are processed in place, a few at a time
(`wide_rows.py`). Narrow rows are gathered and processed at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tacg.scan.cpu_measures import divergence, entropy, next_to_best, others
from tacg.scan.reference import SUPPRESSED, at, share
from tacg.scan.wide_rows import CHUNK, WIDE, ScanPiece, chunk_maxima, in_pairs, inside_chunks, kept_buffer, wide_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

ALIKE = 1e-5  # relative; shares closer than this, far above rounding, do not show which logit is larger
UNDOABLE = 0.5  # from this decay on, the EMA is updated first and its past recovered when needed


def read(
    logits: Tensor, rows: Tensor | None, proposal: Tensor | None, names: frozenset[str], previous: Tensor | None,
    slots: Tensor, first: Tensor, store: Tensor | None = None, beta: float = 0.0,
) -> dict[str, Tensor]:  # fmt: skip
    """Like `reference.read`. With a `store`, its EMA is updated in the same pass, while the logits are in the cache.

    `contrast` must then recover the past from it (`beta`).
    """
    count, size = len(slots), logits.shape[1]
    kind = torch.promote_types(logits.dtype, torch.float32)
    chunks = -(-size // CHUNK) if size >= WIDE else 1
    shares = logits.new_empty(count, chunks, dtype=kind)  # the largest of every chunk
    found = {name: shares.new_empty(count) for name in names & {"entropy", "kl", "others"}}
    own = None if proposal is None else shares.new_empty(count)
    for piece in _pieces(size, rows, slots, first):
        z = logits[piece.row]
        posterior = _buffer("one", z)
        z = z if z.dtype == kind else _buffer("two", z).copy_(z)
        torch.softmax(z, dim=1, out=posterior)
        if store is not None:
            _mix(store, piece, _bounded(z), beta)
        if chunks == 1:
            torch.amax(posterior, dim=1, out=shares[piece.at, 0])
        else:
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
            found["entropy"][piece.at] = entropy(z, posterior, shares[piece.at], _buffer("two", z))
    top, chunk = shares.max(dim=1)
    peak, best = _best(logits, rows, shares, top, chunk)
    found |= {"token": best if proposal is None else proposal, "confidence": top if own is None else own, "peak": peak}
    if names & {"margin", "gap"}:
        second = next_to_best(logits, rows, shares, top, chunk, peak, best)
        pair = {"margin": top * (1.0 - second), "gap": -second.log().clamp_min(SUPPRESSED)}
        found |= {name: values for name, values in pair.items() if name in names}
    return found


def contrast(
    logits: Tensor, rows: Tensor, reference: Tensor, slots: Tensor, token: Tensor, weight: float,
    beta: float | None = None, *, fine: bool = False,
) -> Tensor:  # fmt: skip
    """Like `reference.contrast`; `beta` if the reference already includes these logits: past = z + (now - z) / beta."""
    kind = torch.float64 if fine else torch.promote_types(logits.dtype, torch.float32)
    found = token.new_empty(len(token), dtype=kind)
    for part, pairs in _together(logits, rows, reference, slots):
        mixed = _buffer("one", logits[: len(token[part])])
        for among, z, past in pairs:
            torch.lerp(z, past, weight if beta is None else weight / beta, out=mixed[among])
        found[part] = share(torch.softmax(mixed, dim=1, out=_buffer("two", mixed)), token[part], fine=fine)
    return found


def follow(
    store: Tensor, slots: Tensor, values: Tensor, rows: Tensor, offset: Tensor | None, first: Tensor, beta: float
) -> None:
    """Like `reference.follow`, but logits are shifted only if the store is narrow: softmax ignores constants."""
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
    """Replace values too low to average (in at least float32, if there are any)."""
    if float(z.amin()) >= SUPPRESSED:  # nearly always true, and takes half the time of clamping
        return z
    return torch.clamp_min(z.to(torch.promote_types(z.dtype, torch.float32)), SUPPRESSED)


def _mix(store: Tensor, piece: ScanPiece, fresh: Tensor, beta: float) -> None:
    """Advance the EMA of a piece by one step."""
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
    """Narrow rows all at once; wide rows in runs of neighbours, a few at a time, either all first or none."""
    if size >= WIDE:
        return wide_pieces(size, rows, slots, first)
    every = slice(None) if rows is None else rows
    return iter([ScanPiece(slice(0, len(slots)), every, slots, first if bool(first.any()) else False)])


def _buffer(name: str, like: Tensor) -> Tensor:
    """A buffer for rows like these, in at least float32: new for narrow rows, reused between calls for wide ones."""
    if like.shape[1] >= WIDE:
        return kept_buffer(name, like)
    return like.new_empty(like.shape, dtype=torch.promote_types(like.dtype, torch.float32))


def _together(
    logits: Tensor, rows: Tensor, reference: Tensor, slots: Tensor
) -> Iterator[tuple[slice, list[tuple[slice, Tensor, Tensor]]]]:
    """Logits and reference of the positions, in groups: the group's slice, and its parts (slice within, z, past)."""
    kind = torch.promote_types(logits.dtype, torch.float32)
    if logits.shape[1] < WIDE:
        yield slice(0, len(rows)), [(slice(None), _bounded(logits[rows]).to(kind), reference[slots].to(kind))]
        return
    for part, pairs in in_pairs(logits, rows, reference, slots):
        yield part, [(among, _bounded(z).to(kind), past.to(kind)) for among, z, past in pairs]


def _best(
    logits: Tensor, rows: Tensor | None, shares: Tensor, top: Tensor, chunk: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The largest logit of each row and its first index, [P] each; NaN wins.

    In wide rows it is in the chunk with the largest share, unless another chunk's share is almost equal (or all are
    NaN).
    """
    if shares.shape[1] == 1:
        peak, best = (logits if rows is None else logits[rows]).max(dim=1)
        return peak.to(shares.dtype), best
    inside, start = inside_chunks(logits, rows, chunk)
    peak, best = inside.max(dim=1)
    best += start
    lower = (shares < (top * (1 - ALIKE))[:, None]).sum(dim=1)
    for place in (lower < shares.shape[1] - 1).nonzero().squeeze(1).tolist():
        peak[place], best[place] = logits[place if rows is None else rows[place]].max(dim=0)
    return peak.to(shares.dtype), best
