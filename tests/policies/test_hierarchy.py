"""Hierarchy decoding: the surest of every run of masks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tacg.policies import get_policy
from tacg.types import Decision, Signals
from tests.policies.test_policies import committed, signals

SURE = [0.5, 0.7, 0.65, 0.0, 0.1, 0.6, 0.0, 0.99, 0.8]


def runs(confidence: list[float] = SURE) -> Signals:
    """Three runs of masks, which committed positions (0.0) part: 0-2, 4-5, 7-8."""
    masks = torch.tensor([confidence]) > 0
    return replace(signals(confidence), eligible=masks, observed=masks)


@pytest.mark.parametrize(
    ("low", "threshold", "ready"),
    [
        (0.55, 1.0, [1, 5, 7]),
        (0.6, 1.0, [1, 7]),  # the surest of the second run must exceed 0.6
        (0.6, 0.75, [1, 7, 8]),  # 8 is not the surest of its run, but sure enough anyway
        (0.6, 0.6, [1, 2, 7, 8]),
        (1.0, 1.0, []),
    ],
)
def test_one_of_each_run_and_whatever_is_sure(low: float, threshold: float, ready: list[int]) -> None:
    assert committed(get_policy("hierarchy", low=low, threshold=threshold), runs()) == ready


def test_among_equals_the_lowest_position_leads() -> None:
    assert committed(get_policy("hierarchy", low=0.5, threshold=1.0), runs([0.7, 0.7, 0.0, 0.6, 0.6])) == [0, 3]
    assert committed(get_policy("hierarchy", low=0.5, threshold=1.0), runs([0.7])) == [0]


def revised(confidence: list[float], masked: str, remask: float) -> Decision:
    """Ones in `masked` are masks. Every committed token is another one than the model would write."""
    masks = torch.tensor([[mark == "1" for mark in masked]])
    given = replace(
        signals(confidence), eligible=masks, masked=masks, written=torch.full((1, len(masked)), 9)
    )  # fmt: skip
    return get_policy("hierarchy", low=0.5, threshold=0.9, remask=remask).decide(given, {})[0]


def places(board: torch.Tensor | None) -> list[int]:
    assert board is not None
    return board[0].nonzero()[:, 0].tolist()


def test_doubted_tokens_join_the_pool() -> None:
    """1 and 4 are doubted, so three positions are written: the surest of the only run, and the next two by rank."""
    decision = revised([0.6, 0.25, 0.5, 0.4, 0.2, 0.8], "101100", remask=0.3)
    assert (places(decision.base), places(decision.edit), places(decision.remask)) == ([0, 2, 3], [], [1, 4])


def test_a_doubted_token_may_be_written_anew() -> None:
    """0.45 is the second best of the pool: it is replaced, and one mask is written for it."""
    decision = revised([0.6, 0.45, 0.4, 0.4], "1010", remask=0.5)
    assert (places(decision.base), places(decision.edit), places(decision.remask)) == ([0, 2], [1], [3])


def test_without_doubts_it_is_the_plain_rule() -> None:
    decision = revised([0.6, 0.95, 0.4, 0.3], "1010", remask=0.2)
    assert (places(decision.base), places(decision.edit), places(decision.remask)) == ([0], [], [])


def test_it_revises_only_if_it_is_told_to() -> None:
    assert not get_policy("hierarchy").revises
    assert get_policy("hierarchy", remask=0.3).revises
    assert get_policy("tacg+hierarchy", remask=0.3).revises
