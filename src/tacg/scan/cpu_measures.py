"""Signals beyond token and confidence on a CPU: margin, gap, entropy, divergence, others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tacg.scan.memory import put
from tacg.scan.reference import SMOOTHING, SUPPRESSED
from tacg.scan.wide_rows import CHUNK, WIDE, inside_chunks

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.scan.wide_rows import ScanPiece

NOTHING = torch.tensor(SMOOTHING, dtype=torch.float64).log().item()
CLOSE = 0.99  # confidence above which 1 - confidence has too few digits left in float32


def next_to_best(
    logits: Tensor, rows: Tensor | None, shares: Tensor, top: Tensor, peak: Tensor, best: Tensor
) -> Tensor:
    """The second largest share relative to the largest, [P]: from the best one's own chunk or from all the others."""
    if logits.shape[1] < WIDE:
        own = start = torch.zeros_like(best)
        inside = logits if rows is None else logits[rows]
    else:
        own = best // CHUNK
        inside, start = inside_chunks(logits, rows, own)
    near = inside.to(peak.dtype).scatter(1, (best - start)[:, None], -torch.inf).amax(dim=1)
    far = shares.scatter(1, own[:, None], 0.0).amax(dim=1)
    return torch.maximum((near - peak).exp(), far / top)


def entropy(z: Tensor, posterior: Tensor, shares: Tensor, room: Tensor) -> Tensor:
    """-Σ p log p, with log p = z - peak + log p(best); `room` is a buffer like z, and may be z itself."""
    shifted = torch.sub(z, z.amax(dim=1, keepdim=True), out=room).clamp_min_(SUPPRESSED)
    return -_dot(posterior, shifted) - shares.amax(dim=1).log()


def divergence(z: Tensor, posterior: Tensor, shares: Tensor, previous: Tensor, piece: ScanPiece) -> Tensor:
    """KL(p_t || p_{t-1}), both smoothed as in KLASS, as a difference of cross entropies; updates `previous`.

    Wide rows use max(log p, log ε) instead of log(p + ε), which saves a logarithm per value. The result differs if a
    token rises from below ε = 1e-12: its part of the divergence is larger, by at most 6 % if the token is now above
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
        normalizer = z.amax(dim=1) - shares.amax(dim=1).log()  # log of the softmax denominator
        torch.sub(z, normalizer[:, None], out=kept).clamp_min_(NOTHING)
    now = _dot(posterior, kept)
    if not isinstance(piece.slot, slice):
        put(previous, piece.slot, kept)
    return now.sub_(before).clamp_min_(0.0)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """Row-wise dot product, [K]. A single row is computed twice, because alone it would be rounded differently."""
    many = len(one) > 1
    found: Tensor = torch.linalg.vecdot(one if many else one.expand(2, -1), other if many else other.expand(2, -1))
    return found[: len(one)]


def others(posterior: Tensor, confidence: Tensor) -> Tensor:
    """The probability of all other tokens, [P]: 1 - confidence, but added up where float32 would lose its digits."""
    rest = 1.0 - confidence
    close = (confidence > CLOSE).nonzero().squeeze(1)
    if len(close):
        total = posterior[close].sum(dim=1, dtype=torch.float64)
        rest[close] = (total - confidence[close]).clamp_min(0.0).to(rest.dtype)
    return rest
