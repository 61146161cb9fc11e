"""What the engine asks of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The facts of a checkpoint that decoding depends on.

    mask_id     the token that stands for a mask
    eos_ids     tokens that end an answer: end of text and end of turn
    unwritable  ids that may never be committed: the mask itself and rows of the output table that no token owns
    max_length  longest canvas, prompt included
    """

    name: str
    family: str
    vocab_size: int
    mask_id: int
    eos_ids: tuple[int, ...]
    unwritable: tuple[int, ...]
    max_length: int


class Denoiser(Protocol):
    """Predicts the tokens of packed rows. Rows are laid end to end: there is no padding to be confused by."""

    spec: ModelSpec

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    def __call__(self, tokens: Tensor, lengths: Sequence[int], select: Tensor) -> Tensor:
        """Logits [P, V] at `select`; aligned, so that position i predicts token i. The engine may write into them.

        tokens   int64 [N], the rows one after another, N = sum(lengths)
        lengths  of each row
        select   int64 [P], indices into `tokens`
        """
        ...
