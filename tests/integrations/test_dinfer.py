"""The decoder for dInfer, driven as dInfer's runners drive one: the loop below is a stand-in for theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tacg.errors import LogitsError, TacgError
from tacg.integrations.dinfer import TacgDecoder
from tacg.models.base import whole
from tacg.policies import get_policy
from tests.worlds import MASK, ReactiveDenoiser, decode_one

WORLD = ReactiveDenoiser(seed=2, scale=4.0)
PROMPT, LENGTH, WIDTH = (5, 9, 4), 16, 8


def logits_of(x: Tensor) -> Tensor:
    return torch.stack([WORLD(row, whole([len(row)]), torch.arange(len(row))) for row in x])


def run(decoder: Any, prompts: list[tuple[int, ...]], unroll: int = 2) -> tuple[Tensor, int]:
    """Blocks from left to right; `unroll` forwards between two looks at whether a block is full."""
    x = torch.tensor([[*prompt, *[MASK] * LENGTH] for prompt in prompts])
    forwards = 0
    for number, start in enumerate(range(len(prompts[0]), x.shape[1], WIDTH)):
        stop = start + WIDTH
        decoder.block_init(x[:, start:stop], number)
        while (x[:, start:stop] == decoder.mask_id).any():
            for _ in range(unroll):
                decoder.decode(logits_of(x)[:, start:stop], start, stop, x)
                forwards += 1
    return x, forwards


@pytest.mark.parametrize(
    "knobs",
    [{}, {"base": "klass", "threshold": 0.5, "kl_threshold": 1.0}, {"k_extra": 0, "m_base": 1, "threshold": 0.6}],
)
def test_a_decode_is_that_of_our_engine(knobs: dict[str, Any]) -> None:
    prompts = [PROMPT, (7, 7, 2), (3, 8, 11)]
    together, _ = run(TacgDecoder(MASK, 0, **knobs), prompts)
    policy = get_policy(
        "tacg+klass" if knobs.get("base") else "tacg", **{k: v for k, v in knobs.items() if k != "base"}
    )
    for row, prompt in zip(together.tolist(), prompts, strict=True):
        alone = decode_one(WORLD, prompt, policy, gen_length=LENGTH, block_length=WIDTH, early_stop=False)
        assert row == [*prompt, *alone.tokens]
        assert run(TacgDecoder(MASK, 0, **knobs), [prompt], unroll=1)[0][0].tolist() == row


def test_a_decoder_can_be_used_again() -> None:
    decoder = TacgDecoder(MASK, 0)
    first, _ = run(decoder, [PROMPT])
    assert run(decoder, [PROMPT])[0].tolist() == first.tolist()
    assert decoder.blocks is not None
    assert len(decoder.blocks.steps) == 1, "seats are used again"


def test_it_ends_in_time() -> None:
    _, forwards = run(TacgDecoder(MASK, 0, threshold=1.0, k_extra=0), [PROMPT], unroll=1)
    assert forwards <= LENGTH


def test_samples_are_seeded() -> None:
    one, again, other = (run(TacgDecoder(MASK, 0, temperature=4.0, seed=s), [PROMPT])[0].tolist() for s in (1, 1, 2))
    assert one == again != other


def test_mistakes_are_told() -> None:
    with pytest.raises(TacgError, match="Did you mean 'threshold'"):
        TacgDecoder(MASK, 0, treshold=0.8)
    decoder = TacgDecoder(MASK, 0)
    x = torch.full((1, WIDTH), MASK)
    with pytest.raises(TacgError, match="must follow block_init"):
        decoder.decode(torch.zeros(1, WIDTH, 9), 0, WIDTH, x)
    decoder.block_init(x, 0)
    with pytest.raises(TacgError, match="`iter_threshold` must be None"):
        decoder.decode(torch.zeros(1, WIDTH, 9), 0, WIDTH, x, 0.9)
    with pytest.raises(LogitsError, match="row 0"):
        decoder.decode(torch.full((1, WIDTH, 9), torch.nan), 0, WIDTH, x)
