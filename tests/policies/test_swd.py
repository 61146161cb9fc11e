"""Stability weights on hand-made signals, over several base policies."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import pytest
import torch

from tacg.errors import TacgError
from tacg.policies import get_policy
from tacg.types import Signals
from tests.policies.test_policies import committed, signals

STILL, MOVING = 0.0, 0.1  # exp(-5 · 0.1) = 0.61


def later(confidence: list[float], **measured: list[float]) -> Signals:
    """Signals of positions that were observed before."""
    given = signals(confidence, **measured)
    return replace(given, first=torch.zeros_like(given.first))


def test_what_moves_looks_less_sure() -> None:
    given = later([0.9, 0.9, 0.99, 0.5], reverse_kl=[STILL, MOVING, 0.01, STILL])
    assert committed(get_policy("swd", threshold=0.8), given) == [0, 2]
    assert committed(get_policy("swd", threshold=0.95), given) == [], "0.99 exp(-0.05) is 0.94"
    assert committed(get_policy("swd", threshold=0.8, stability_lambda=0.0), given) == [0, 1, 2], "the base policy"
    policy = get_policy("swd", threshold=1.0)
    decision, _ = policy.decide(given, policy.start(1, 4, torch.device("cpu")))
    assert decision.rank[0].argsort(descending=True).tolist() == [2, 0, 1, 3]
    torch.testing.assert_close(decision.notes["stability"][0], torch.tensor([1.0, exp(-0.5), exp(-0.05), 1.0]))


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("swd+schedule", {}),
        ("swd+schedule", {"rank_by": "margin"}),
        ("swd+frechet", {"delta": 0.7}),
        ("swd+confidence", {"factor": 0.1}),
        ("swd+klass", {"kl_threshold": 1.0, "history": 1}),
    ],
)
def test_any_rule_over_confidence_or_margin_can_be_weighed(name: str, knobs: dict[str, float | str]) -> None:
    """Two positions are alike, but the first one moves."""
    given = later([0.95, 0.93], reverse_kl=[MOVING, STILL], margin=[0.9, 0.88], kl=[0.0, 0.0])
    assert committed(get_policy(name, **knobs), given) == [1]


def test_a_first_observation_is_taken_as_it_is_or_comes_after_the_uniform_distribution() -> None:
    given = signals([0.9, 0.9], reverse_kl=[3.0, 3.0])
    given = replace(given, first=torch.tensor([[True, False]]))
    assert committed(get_policy("swd", threshold=0.8), given) == [0]
    assert committed(get_policy("swd", threshold=0.8, first="uniform"), given) == []


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("swd+eb", {}, "`eb` decides by entropy here: try it over `confidence`"),
        ("swd+schedule", {"rank_by": "entropy"}, "`schedule` decides by entropy here"),
        ("swd+tacg", {}, r"must be under the gate, not over it: try `tacg\+swd`"),
    ],
)
def test_what_cannot_be_weighed_is_refused(name: str, knobs: dict[str, str], message: str) -> None:
    with pytest.raises(TacgError, match=message):
        get_policy(name, **knobs)
