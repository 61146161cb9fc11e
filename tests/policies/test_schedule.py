"""What is drawn in a schedule: Dream's `origin` and `alg_temp`."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tacg.policies import get_policy
from tests.policies.test_policies import committed, signals


def test_independent_masks_commit_with_the_share_as_probability() -> None:
    """Of four equal steps the first takes a quarter, the second a third, the last everything."""
    policy = get_policy("schedule", pace="independent", last_time=0.0)
    noise = [0.2, 0.3, 0.4, 0.99]
    shown = [committed(policy, signals([0.5] * 4, step=step, steps=4, noise=noise)) for step in range(4)]
    assert shown == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 0.750), (0.5, 0.900), (4.0, 0.568)])
def test_a_hot_ranking_draws_in_proportion(temperature: float, share: float) -> None:
    """Readiness log 3 against 0: the first goes first with probability 3^(1/T) / (3^(1/T) + 1)."""
    policy = get_policy("schedule", rank_temperature=temperature)
    generator = torch.Generator().manual_seed(0)
    won = Counter(
        committed(policy, signals([1.0986, 0.0], steps=2, noise=torch.rand(2, generator=generator).tolist()))[0]
        for _ in range(4000)
    )
    assert won[0] / 4000 == pytest.approx(share, abs=0.03)
