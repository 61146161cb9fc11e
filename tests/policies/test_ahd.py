"""Stable positions of later blocks on hand-made signals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tacg.errors import TacgError
from tacg.policies import get_policy
from tacg.types import Needs, Past, Signals
from tests.policies.test_policies import signals


def three_blocks(confidence: list[float], drift: list[float]) -> Signals:
    """Blocks of two, all open; the first position is committed already."""
    masked = torch.tensor([[False, True, True, True, True, True]])
    grid = torch.tensor([[0, 0, 1, 1, 2, 2]])
    return replace(
        signals(confidence, drift=drift), masked=masked, eligible=masked, active=masked & (grid == 0), grid=grid,
        current=torch.tensor([0]), opened=torch.tensor([3]), length=torch.tensor([6]),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sure", "drift", "expected"),
    [
        (0.95, [0.0, 9.0, 0.009, 9.0, 0.0, 0.01], [1, 2, 4]),  # the active block by confidence, the others by drift
        (0.5, [0.0, 0.0, 9.0, 9.0, 9.0, 9.0], []),  # in the active block drift does not count
        (0.5, [0.0, 0.0, 9.0, 9.0, 0.0, 9.0], [1, 4]),  # and it gets ahead in any step that commits something
    ],
)
def test_what_has_stopped_moving_need_not_wait_for_its_block(
    sure: float, drift: list[float], expected: list[int]
) -> None:
    policy = get_policy("ahd", threshold=0.9, max_drift=0.01)
    given = three_blocks([0.0, sure, 0.1, 0.99, 0.1, 0.99], drift)
    decision, _ = policy.decide(given, policy.start(1, 6, torch.device("cpu")))
    assert decision.base[0].nonzero()[:, 0].tolist() == expected
    assert decision.open is not None
    assert decision.open.tolist() == [3]


def test_any_policy_may_decode_the_active_block() -> None:
    policy = get_policy("ahd+eb", window=4, drift_lambda=0.7, bound=1.0)
    assert policy.needs == Needs("entropy", "drift", past=Past(3, 0.7), scope="answer")
    given = three_blocks([0.5] * 6, [9.0] * 6)
    given = replace(given, measured={**given.measured, "entropy": torch.zeros(1, 6)})
    decision, _ = policy.decide(given, policy.start(1, 6, torch.device("cpu")))
    assert decision.base[0].nonzero()[:, 0].tolist() == [1], "not the others, though they are as sure"


def test_drift_is_measured_over_a_stated_past() -> None:
    with pytest.raises(TacgError, match=r"past=Past\(steps, decay\)"):
        Needs("drift")
    with pytest.raises(TacgError, match="Two kinds of past"):
        Needs(past=Past(2, 0.5)) | Needs(past=Past(3, 0.5))
