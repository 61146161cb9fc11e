"""A denoiser without a network: it plays prepared logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacg.models.base import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.models.base import Span


class ScriptedDenoiser:
    """Plays trajectories. The first token of a row's prompt selects one.

    scripts  one float tensor [steps, positions, V] each; positions count from the start of the row, prompt included.
             The last step is repeated at the end. A row with as many masks as at the last call, or more, starts over.
    """

    def __init__(self, scripts: Sequence[Tensor], *, mask_id: int = 1, eos_ids: tuple[int, ...] = (0,)) -> None:
        self.scripts = list(scripts)
        size = self.scripts[0].shape[-1]
        self.spec = ModelSpec("scripted", "scripted", size, mask_id, eos_ids, (mask_id,), 1 << 20)
        self.device = torch.device("cpu")
        self.calls = 0
        self._played: dict[int, tuple[int, int]] = {}  # script -> (next step, masks at the last call)

    def __call__(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Logits [P, V] at `select`; every call moves each row's script on by one step."""
        self.calls += 1
        frames: list[Tensor] = []
        for span, row in zip(spans, torch.split(tokens, [len(span) for span in spans]), strict=True):
            number = int(row[0])
            masks = int((row == self.spec.mask_id).sum())
            step, before = self._played.get(number, (0, 0))
            step = step if masks < before else 0
            self._played[number] = (step + 1, masks)
            script = self.scripts[number]
            frame = script[min(step, len(script) - 1)]
            frames.extend(frame[start:stop] for start, stop in span.stretches())
        return torch.cat(frames)[select]
