"""What the engine asks of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from tacg.cache import Cache


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The facts of a checkpoint that decoding depends on.

    mask_id       the token that stands for a mask
    eos_ids       tokens that end an answer: end of text and end of turn
    unwritable    ids that may never be committed: the mask itself and rows of the output table that no token owns
    max_length    longest canvas, prompt included
    logit_shift   how many positions before a token its prediction is read (1 for models with shifted logits)
    causal_block  positions of a block if a block sees only itself and what is before it; None: everything is seen
    before, after ids that stand around every text (masked language models: [CLS] and [SEP])
    """

    name: str
    family: str
    vocab_size: int
    mask_id: int
    eos_ids: tuple[int, ...]
    unwritable: tuple[int, ...]
    max_length: int
    logit_shift: int = 0
    causal_block: int | None = None
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a row that a forward computes: positions [start, stop) of the canvas.

    reach  keys of positions below this are seen
    cache  keys and values of the row; those of the span are written into it. None: the span begins the row
    """

    start: int
    stop: int
    reach: int
    cache: Cache | None = None

    def __len__(self) -> int:
        return self.stop - self.start


def whole(lengths: Sequence[int]) -> list[Span]:
    """Spans of rows that are computed from end to end."""
    return [Span(0, length, length) for length in lengths]


class Denoiser(Protocol):
    """Predicts the tokens of packed rows. Spans are laid end to end: there is no padding to be confused by."""

    spec: ModelSpec

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    def __call__(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Logits [P, V] at `select`; aligned, so that position i predicts token i. The engine may write into them.

        Models that also have `hidden` (the same, but hidden states [P, H]) and `head` (logits of these) can be decoded
        with `memory="hidden"`.

        tokens  int64 [N], the tokens of the spans one after another
        spans   which part of its row each of them is
        select  int64 [P], indices into `tokens`
        """
        ...
