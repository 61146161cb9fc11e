"""Random numbers as a function of (seed, step, position): rows do not influence each other, and no state is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

# The multipliers of SplitMix64 as signed 64-bit integers, and odd constants that separate the counters.
MIX = (-4658895280553007687, -7723592293110705685)
SEED, STEP, PLACE, DRAW = -7046029254386353131, -3335678366873096957, -8663945395140668459, -5840758589994634535
NOISE, PROPOSAL, SAMPLES = 0, 1, 2  # the use of each draw; samples use 2, 3, …


def uniform(seed: Tensor, step: Tensor, length: int, first: int, count: int = 1) -> Tensor:
    """float32 [R, L, count], uniform in [0, 1): draws `first`, `first` + 1, … of every position.

    seed, step  int64 [R]
    """
    device = seed.device
    place = torch.arange(length, device=device) * PLACE
    draw = torch.arange(first, first + count, device=device) * DRAW
    x = _mixed(seed * SEED) + step * STEP  # neighbouring seeds are unrelated
    x = _mixed(x[:, None, None] + place[None, :, None] + draw)
    return ((x >> 40) & 0xFFFFFF).float() * 2**-24


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's finalizer. Right shifts of signed integers copy the sign, so these bits are masked out."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * MIX[0]
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * MIX[1]
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def sample(logits: Tensor, temperature: Tensor, uniforms: Tensor) -> Tensor:
    """Tokens sampled from softmax(z / T), int64 [P, K], by inverting the cumulative distribution.

    logits float [P, V], temperature float [P], uniforms float [P, K]
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    share = torch.softmax(wide / temperature[:, None], dim=1).cumsum(dim=1)
    total = share[:, -1:]
    mark = torch.minimum(uniforms * total, total * (1 - 2**-22))  # never beyond the last possible token
    return torch.searchsorted(share, mark.to(share.dtype), right=True).clamp_(max=logits.shape[1] - 1)
