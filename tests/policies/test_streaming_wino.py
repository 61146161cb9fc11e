"""Streaming-dLLM and WINO on signals made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tacg.policies import get_policy
from tacg.types import Signals
from tests.policies.test_policies import signals


def streamed(confidence: list[float], masked: list[int], step: int, **knobs: float) -> list[int]:
    """What is committed of an answer of ten in blocks of four, the second block active."""
    places = torch.arange(10)[None]
    left = torch.isin(places, torch.tensor(masked))
    given = replace(
        signals(confidence), masked=left, eligible=left & (places // 4 == 1), grid=places // 4,
        length=torch.tensor([10]), current=torch.tensor([1]), step=torch.tensor([step]),
    )  # fmt: skip
    decision, _ = get_policy("streaming", threshold=0.8, **knobs).decide(given, {})
    return decision.base[0].nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("masked", "step", "suffix", "bar"),
    [
        ([4, 5, 6, 7, 8, 9], 1, 9, 0.8),  # all is masked
        ([4, 5, 8, 9], 1, 9, 0.8 * (1 - 0.5 * 2 / 6)),  # four of six
        ([4, 5, 8, 9], 1, 0, 0.8 * (1 - 0.5 * 2 / 5)),  # the last position is computed, the one before it is not
        ([4, 5, 8, 9], 1, 1, 0.8 * (1 - 0.5 * 2 / 6)),
        ([4, 5, 8, 9], 0, 9, 0.8),  # a block's first step
    ],
)
def test_streamings_bar_falls_with_the_share_of_masks(masked: list[int], step: int, suffix: int, bar: float) -> None:
    sure = [0.99] * 4 + [bar + 1e-4, bar - 1e-4] + [0.99] * 4
    block = [place for place in masked if place in (6, 7)]
    assert streamed(sure, masked, step, alpha=0.5, suffix=suffix) == [4, *block]


def test_streaming_leaves_out_the_suffix() -> None:
    assert get_policy("streaming", suffix=7).needs.suffix == 7
    assert get_policy("tacg+streaming", suffix=7).needs.suffix == 7
    assert get_policy("tacg").needs.suffix is None


def board(confidence: list[float], recheck: list[float], masked: list[bool], step: int = 1) -> Signals:
    left = torch.tensor([masked])
    given = signals(confidence, recheck=recheck)
    return replace(given, observed=torch.ones_like(left), eligible=left, masked=left, step=torch.tensor([step]))


def test_wino_drafts_a_bounded_number() -> None:
    """0.7 of the masks, at least 5, at most 20; the surest of those above the threshold."""
    policy = get_policy("wino", threshold=0.5)
    state = policy.start(1, 40, torch.device("cpu"))
    for masks, most in ((4, 4), (6, 5), (10, 7), (40, 20)):
        rising = [0.6 + 0.001 * place for place in range(masks)]
        decision, after = policy.decide(board(rising, [1.0] * masks, [True] * masks), state)
        assert decision.base[0].nonzero()[:, 0].tolist() == list(range(masks - most, masks))
        assert after["drafts"].tolist() == [most]
    decision, after = policy.decide(board([0.5, 0.4], [1.0] * 2, [True] * 2), state)
    assert not decision.base.any(), "above, not at; the engine then takes the surest"
    assert after["drafts"].tolist() == [1]


@pytest.mark.parametrize(
    ("step", "drafted", "sure", "taken_back"),
    [
        (1, 3, 2, [1, 2]),  # fewer than the last step drafted, the worst first
        (1, 9, 2, [0, 1, 2]),
        (1, 9, 1, []),  # nothing in a step that drafts one
        (0, 1, 2, [0, 1, 2]),  # a block's first step: 29 at most
    ],
)
def test_wino_takes_back_what_it_would_not_write_again(
    step: int, drafted: int, sure: int, taken_back: list[int]
) -> None:
    given = board([0.9] * 6, [0.8, 0.3, 0.5, 0.9, 1.0, 1.0], [False] * 4 + [True] * 2, step)
    given = replace(given, confidence=torch.tensor([[0.9] * 4 + [0.9, 0.9 if sure == 2 else 0.1]]))
    decision, _ = get_policy("wino", keep=0.9).decide(given, {"drafts": torch.tensor([drafted])})
    assert decision.remask is not None
    assert decision.remask[0].nonzero()[:, 0].tolist() == taken_back
