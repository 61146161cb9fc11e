"""Random numbers that belong to a row, so that its neighbours cannot change them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Generator, Tensor


def propose(logits: Tensor, counts: Sequence[int], generators: Sequence[Generator], temperature: float) -> Tensor:
    """Gumbel-max samples, int64 [P]: argmax of z + T g. Row i owns the next `counts[i]` of the P positions."""
    noise = torch.cat(
        [
            torch.rand(count, logits.shape[1], generator=generator, device=logits.device)
            for count, generator in zip(counts, generators, strict=True)
        ]
    )
    gumbel = -(-noise.clamp_min(torch.finfo(noise.dtype).tiny).log()).log()
    return (logits.float() + temperature * gumbel).argmax(dim=1)
