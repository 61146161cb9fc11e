"""The scan on a CPU: `reference.py` in tiles of rows that stay in the cache, by the operations that are fast there.

What was measured (docs/roofline.md): `exp` costs more than reading memory does; the exponential inside `softmax` is the
cheapest there is; `amax` runs at the speed of memory, `max` with indices seven times slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tacg.scan.reference import SMOOTHING, SUPPRESSED, at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

TILE = 1 << 20  # values in a tile
CHUNK = 512  # values whose maximum is taken before anybody asks which of them it was


def read(
    logits: Tensor, rows: Tensor | None, proposal: Tensor | None, names: frozenset[str], previous: Tensor | None,
    slots: Tensor, first: Tensor,
) -> dict[str, Tensor]:  # fmt: skip
    """As `reference.read`."""
    parts = []
    for tile in _tiles(logits, len(slots)):
        z = logits[tile] if rows is None else logits.index_select(0, rows[tile])
        picked = None if proposal is None else proposal[tile]
        parts.append(_read(z, picked, names, previous, slots[tile], first[tile]))
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _read(
    logits: Tensor,
    proposal: Tensor | None,
    names: frozenset[str],
    previous: Tensor | None,
    slots: Tensor,
    first: Tensor,
) -> dict[str, Tensor]:
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    peak, best = highest(z)
    token = best if proposal is None else proposal
    posterior = z.softmax(dim=1)
    found = {"token": token, "peak": peak, "confidence": at(posterior, token)}
    if "margin" in names:
        found["margin"] = _margin(posterior, best)
    if "entropy" in names:
        found["entropy"] = _entropy(z, posterior, peak, best)
    if previous is not None:
        smooth = posterior.add(SMOOTHING).log_()
        before = previous.index_select(0, slots)
        if bool(first.any()):
            before.masked_fill_(first[:, None], torch.tensor(SMOOTHING).log())
        found["kl"] = torch.linalg.vecdot(posterior, torch.sub(smooth, before, out=before))
        previous.index_copy_(0, slots, smooth)
    return found


def contrast(logits: Tensor, reference: Tensor, token: Tensor, w: float) -> tuple[Tensor, Tensor]:
    """As `reference.contrast`."""
    before, readout = [], []
    for tile in _tiles(logits, len(logits)):
        wide = torch.promote_types(logits.dtype, torch.float32)
        z, ref = (x[tile].to(wide).clamp_min(SUPPRESSED) for x in (logits, reference))
        z -= z.amax(dim=1, keepdim=True)
        ref -= ref.amax(dim=1, keepdim=True)
        before.append(at(ref.softmax(dim=1), token[tile]))
        readout.append(at(torch.lerp(ref, z, 1.0 + w, out=ref).softmax(dim=1), token[tile]))
    return torch.cat(before), torch.cat(readout)


def follow(
    store: Tensor, slots: Tensor, values: Tensor, rows: Tensor, offset: Tensor | None, first: Tensor, beta: float
) -> None:
    """As `reference.follow`."""
    wide = torch.promote_types(values.dtype, torch.float32)
    some, every = bool(first.any()), bool(first.all())
    for tile in _tiles(values, len(rows)):
        fresh = values.index_select(0, rows[tile]).to(wide)
        if offset is not None:
            fresh.sub_(offset[tile, None]).clamp_min_(SUPPRESSED)
        if not every:
            old = store.index_select(0, slots[tile]).to(wide)
            if some:
                old = torch.where(first[tile, None], fresh, old)
            fresh = old.lerp_(fresh, 1.0 - beta)
        store.index_copy_(0, slots[tile], fresh.to(store.dtype))


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
    """The largest probability minus the second."""
    top = at(posterior, best)
    if posterior.shape[1] == 1:
        return top
    rest = posterior.scatter(1, best[:, None], -1.0)
    return top - rest.amax(dim=1)


def _entropy(z: Tensor, posterior: Tensor, peak: Tensor, best: Tensor) -> Tensor:
    """-Σ p log p, with log p = z - peak + log p(best)."""
    shifted = (z - peak[:, None]).clamp_min_(SUPPRESSED)
    mean: Tensor = torch.linalg.vecdot(posterior, shifted)
    return -mean - at(posterior, best).log()


def _tiles(values: Tensor, rows: int) -> Iterator[slice]:
    """Slices of `rows`, each as many as stay in the cache if they are as long as those of `values`."""
    size = max(1, TILE // max(1, values.shape[1]))
    for start in range(0, rows, size):
        yield slice(start, start + size)
