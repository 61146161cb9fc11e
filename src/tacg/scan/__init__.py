"""Scan once: logits of the observed positions in, scalars out. The only place that reads the vocabulary axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tacg.errors import LogitsError
from tacg.scan.look import Hidden, Look
from tacg.scan.memory import Memory
from tacg.scan.reference import lowest
from tacg.types import CONTRASTED, Signals

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Needs

__all__ = ["Hidden", "Look", "Memory", "lowest", "observe", "scan"]


def scan(
    logits: Tensor, slots: Tensor, memory: Memory, needs: Needs, proposal: Tensor | None = None, backend: str = "auto"
) -> dict[str, Tensor]:
    """Measure all `needs` at P positions and move their history on by one step (see `Look`)."""
    look = Look(logits, slots, memory, needs, proposal, backend=backend)
    try:
        look.refuse_unusable()
    except LogitsError:
        memory.seen = torch.zeros_like(memory.seen)  # some were followed already: all start over
        raise
    found = {**look.found, "first": look.first}
    if needs.contrast is not None and not look.fused:
        everywhere = torch.arange(len(slots), device=slots.device)
        found |= {name: look.contrast(everywhere, name) for name in CONTRASTED if name in needs}
    look.follow()
    return found


def observe(
    look: Look, observed: Tensor, eligible: Tensor, *, step: Tensor, steps: Tensor, noise: Tensor | None = None,
    eager: bool = False,
) -> Signals:  # fmt: skip
    """Spread what the look found over the window. The contrast is measured where a policy asks; `eager`: everywhere.

    observed bool [R, W]: the positions of `look`, in row-major order.
    """
    slots = look.slots

    def spread(values: Tensor, at: Tensor, neutral: float = 0) -> Tensor:
        board = torch.full((observed.numel(),), neutral, dtype=values.dtype, device=values.device)
        board[at] = values
        return board.view(observed.shape)

    def later(where: Tensor, name: str) -> Tensor:
        chosen = where.reshape(-1)[slots].nonzero().squeeze(1)
        return spread(look.contrast(chosen, name) if len(chosen) else look.peak[:0], slots[chosen])

    found = dict(look.found)
    token, confidence = found.pop("token"), found.pop("confidence")
    measured = {name: spread(values, slots) for name, values in found.items()}
    if noise is not None:
        measured["noise"] = noise
    lazy = look.needs.contrast is not None and not look.fused
    if lazy and eager:
        measured |= {name: later(observed, name) for name in CONTRASTED if name in look.needs}
    return Signals(
        observed=observed,
        eligible=eligible,
        first=spread(look.first, slots),
        token=spread(token, slots, -1),
        confidence=spread(confidence, slots),
        step=step,
        steps=steps,
        measured=measured,
        later=later if lazy and not eager else None,
    )
