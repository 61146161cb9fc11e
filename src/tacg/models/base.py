"""The interface between the engine and a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    import torch
    from torch import Tensor

    from tacg.cache import Cache


BLOCK_LENGTH = 32  # the default for models with full attention
NO_MASK = -1  # mask id of a model without a mask, which writes from left to right


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The facts of a checkpoint that decoding depends on.

    mask_id       the token that stands for a mask (`NO_MASK`: an autoregressive model)
    eos_ids       tokens that end an answer: end of text and end of turn
    unwritable    ids that may never be committed: the mask itself and unused rows of the output table
    max_length    longest canvas, prompt included
    logit_shift   how many positions before a token its prediction is read (1 for models with shifted logits)
    causal_block  block size if a block attends only to itself and what is before it; None: full attention
    sub_block     how many positions of such a block the model's authors decode at a time; None: all of them
    pads_prompt   whether prompts are padded on the left to whole blocks, so that the answer begins with a new block.
                  The padding is masked and has no position, so here only the blocks move
    before, after ids around every text (masked language models: [CLS] and [SEP])
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
    sub_block: int | None = None
    pads_prompt: bool = False
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def block_length(self, wanted: int | None) -> int:
        """How many positions are decoded at a time: as wanted, or as suits the model."""
        return wanted or self.sub_block or self.causal_block or BLOCK_LENGTH

    def edges(self, prompt: int, wanted: int | None, length: int) -> list[int]:
        """Where the blocks of an answer of `length` begin after a prompt of so many tokens, and where the last ends."""
        size = self.block_length(wanted)
        return self._grid(prompt, size, length) if self.causal_block else [*range(0, length, size), length]

    def _grid(self, prompt: int, size: int, length: int) -> list[int]:
        """`edges` of a block-causal model, whose blocks are counted from the prompt's first token, or padding.

        If it is also shifted, the first token of a block is known from the block before: it is a block of its own, and
        written before all others.
        """
        assert self.causal_block is not None
        before = prompt + self.padding(prompt)
        edges = {0, length, *range(size - before % size, length, size)}
        if self.logit_shift:
            edges |= {*range(1 + -before % self.causal_block, length, self.causal_block)}
        return sorted(edges)

    def padding(self, prompt: int) -> int:
        """How many positions a prompt of this length lacks to fill whole blocks, if the model wants that; else 0."""
        return -prompt % self.causal_block if self.pads_prompt and self.causal_block else 0

    def block_edge(self, position: int, padding: int = 0) -> int:
        """The end of the last block that a stretch up to `position` touches, for a block-causal model."""
        assert self.causal_block is not None
        return -(-(position + padding) // self.causal_block) * self.causal_block - padding


class AttentionMap:
    """How much positions [start, stop) of a row attend to each other; a model fills it while it computes the row.

    share  share of the layers that count, the last ones; 1: all of them
    """

    def __init__(self, start: int, stop: int, share: float) -> None:
        self.start, self.stop, self.share = start, stop, share
        self.layers = 0
        self.total: Tensor | None = None

    def wants(self, layer: int, layers: int) -> bool:
        """Whether this layer, out of `layers`, counts."""
        return layer >= layers - max(1, round(self.share * layers))

    def add(self, weights: Tensor) -> None:
        """Attention of one layer: probabilities float [heads, W, W], queries by keys, over all that a query sees."""
        mine = weights.mean(dim=0)
        self.total = mine if self.total is None else self.total + mine.to(self.total.device)
        self.layers += 1

    def mean(self) -> Tensor:
        """float [W, W]: mean over heads and layers."""
        if self.total is None:
            raise TacgError("The model sets `shows_attention`, but it added nothing to the `attention` of its spans.")
        return self.total / self.layers


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a row that a forward computes: positions [start, stop) of the canvas.

    reach      number of visible keys of the row, from its first on; those not computed here come from the cache
    cache      keys and values of the row; those of the span are written into it. None: the span begins the row
    gap        positions [from, to) that are left out, as if the row did not have them; all others keep their position
    shadow     positions [from, to) for which a mask with the same position is appended. Only shadows see shadows, and a
               shadow sees everything except the token at its own position. It is not kept in the cache
    attention  where to store how positions attend to each other; None: not needed
    padding    how many positions the first block of the row lacks (see `ModelSpec.padding`)
    """

    start: int
    stop: int
    reach: int
    cache: Cache | None = None
    gap: tuple[int, int] = (0, 0)
    shadow: tuple[int, int] = (0, 0)
    attention: AttentionMap | None = None
    padding: int = 0

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.stretches())

    def stretches(self) -> list[tuple[int, int]]:
        """The positions that are computed, in order: ranges [from, to), the shadow's last."""
        parts = [(self.start, self.gap[0]), (self.gap[1], self.stop)] if self.gap[1] else [(self.start, self.stop)]
        return [*parts, self.shadow] if self.shadow[1] else parts


class Spans(list[Span]):
    """Spans that are computed repeatedly. A model keeps what it derives from them here, under a key of its own."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        super().__init__(spans)
        self.known: dict[Hashable, Any] = {}


def whole(lengths: Sequence[int]) -> list[Span]:
    """Spans of rows that are computed from end to end."""
    return [Span(0, length, length) for length in lengths]


class Denoiser(Protocol):
    """Predicts the tokens of packed rows. Spans are laid end to end, without padding."""

    spec: ModelSpec

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        ...

    def __call__(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Logits [P, V] at `select`; aligned, so that position i predicts token i. The engine may write into them.

        Models that also have `hidden` (the same, but hidden states [P, H]) and `head` (logits of these) can be decoded
        with `memory="hidden"`. Models that have `shows_attention = True` fill the `attention` of spans that have one.

        tokens  int64 [N], the tokens of the spans one after another
        spans   which part of its row each of them is
        select  int64 [P], indices into `tokens`
        """
        ...
