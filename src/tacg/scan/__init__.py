"""Scan once: logits of the observed positions in, scalars out. The only place that reads the vocabulary axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tacg.scan.memory import Memory
from tacg.scan.reference import scan
from tacg.types import Signals

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Needs

__all__ = ["Memory", "observe", "scan"]


def observe(
    logits: Tensor,
    observed: Tensor,
    eligible: Tensor,
    memory: Memory,
    needs: Needs,
    *,
    step: Tensor,
    steps: Tensor,
    proposal: Tensor | None = None,
    noise: Tensor | None = None,
) -> Signals:
    """Scan the observed positions and spread the result over the window.

    logits float [P, V]: row-major order of the P positions where `observed` [R, W] is true.
    """
    slots = observed.reshape(-1).nonzero().squeeze(1)
    found = scan(logits, slots, memory, needs, proposal)

    def spread(values: Tensor, neutral: float = 0) -> Tensor:
        board = torch.full((observed.numel(),), neutral, dtype=values.dtype, device=values.device)
        board[slots] = values
        return board.view(observed.shape)

    token, confidence, first = found.pop("token"), found.pop("confidence"), found.pop("first")
    measured = {name: spread(values) for name, values in found.items()}
    if noise is not None:
        measured["noise"] = noise
    return Signals(
        observed=observed,
        eligible=eligible,
        first=spread(first),
        token=spread(token, -1),
        confidence=spread(confidence),
        step=step,
        steps=steps,
        measured=measured,
    )
