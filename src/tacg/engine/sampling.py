"""Random numbers that belong to a row, so that its neighbours cannot change them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Generator, Tensor


def propose(logits: Tensor, counts: Sequence[int], generators: Sequence[Generator], temperature: float) -> Tensor:
    """Gumbel-max samples, int64 [P]: argmax of z + T g. Row i owns the next `counts[i]` of the P positions.

    Row by row, as the noise is as large as the logits.
    """
    found = []
    for z, generator in zip(torch.split(logits, list(counts)), generators, strict=True):
        noise = torch.rand(z.shape, generator=generator, device=z.device)
        gumbel = noise.clamp_min_(torch.finfo(noise.dtype).tiny).log_().neg_().log_().neg_()
        found.append(gumbel.mul_(temperature).add_(z).argmax(dim=1))
    return torch.cat(found)
