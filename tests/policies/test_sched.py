"""The falling bar on hand-made signals."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import pytest
import torch

from tacg.policies import Policy, State, get_policy
from tests.policies.test_policies import signals


def ends(policy: Policy, gap: list[float], left: int, token: int = 0, state: State | None = None) -> tuple[bool, State]:
    """Whether the decode ends with the last `left` of these positions masked, all of which propose `token`."""
    width = len(gap)
    masked = torch.arange(width)[None] >= width - left
    given = replace(
        signals([0.5] * width, gap=gap), masked=masked, length=torch.tensor([width]),
        token=torch.full((1, width), token), first=torch.full((1, width), state is None),
    )  # fmt: skip
    decision, after = policy.decide(given, state or policy.start(1, width, torch.device("cpu")))
    assert decision.finish is not None
    return bool(decision.finish), after


@pytest.mark.parametrize(
    ("shape", "bars"),
    [
        ("linear", (8.0, 6.5, 5.0, 3.5)),
        ("cosine", (8.0, 5 + 3 * 0.5**0.5, 5.0, 5 - 3 * 0.5**0.5)),
        ("exponential", (8.0, 2 + 6 * exp(-0.5), 2 + 6 * exp(-1), 2 + 6 * exp(-1.5))),
    ],
)
def test_the_bar_falls_as_the_answer_is_written(shape: str, bars: tuple[float, ...]) -> None:
    policy = get_policy("sched", shape=shape, high=8.0, low=2.0, curvature=2.0, max_change=None)
    for left, bar in zip((8, 6, 4, 2), bars, strict=True):
        assert ends(policy, [bar + 0.01] * 8, left)[0], left
        assert not ends(policy, [bar - 0.01] * 8, left)[0], left


def test_the_gap_is_the_mean_of_the_masks() -> None:
    policy = get_policy("sched+schedule", high=5.0, low=5.0, max_change=None)
    assert ends(policy, [0.0, 0.0, 3.0, 7.0], left=2)[0], "committed positions do not count"
    assert not ends(policy, [99.0, 99.0, 3.0, 6.9], left=2)[0]
    assert not ends(policy, [99.0] * 4, left=0)[0], "there is nothing to end"


def test_proposals_may_have_to_stand_still() -> None:
    policy, clear = get_policy("sched"), [99.0] * 4
    first, state = ends(policy, clear, left=4, token=3)
    same, state = ends(policy, clear, left=3, token=3, state=state)
    other, _ = ends(policy, clear, left=2, token=4, state=state)
    assert (first, same, other) == (False, True, False), "what was not observed before has changed"
    assert ends(get_policy("sched", max_change=None), clear, left=4)[0]
