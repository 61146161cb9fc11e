"""LocalLeap: anchors, and a lower bar around them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tacg.policies import get_policy
from tests.policies.test_policies import committed, signals


@pytest.mark.parametrize(
    ("radius", "ready"), [(0, [2, 8]), (1, [2, 3, 8]), (2, [2, 3, 4, 8]), (3, [2, 3, 4, 5, 8]), (9, [2, 3, 4, 5, 8])]
)
def test_the_bar_is_lower_near_an_anchor(radius: int, ready: list[int]) -> None:
    """Anchors at 2 and 8; 0.75 meets the bar, 0.74 does not."""
    given = signals([0.74, 0.74, 0.9, 0.75, 0.8, 0.89, 0.74, 0.74, 1.0])
    assert committed(get_policy("localleap", radius=radius), given) == ready


def test_without_an_anchor_nothing_is_ready() -> None:
    assert committed(get_policy("localleap", radius=9), signals([0.89, 0.8, 0.75])) == []


def test_a_higher_bar_near_anchors_does_not_refuse_the_anchors() -> None:
    assert committed(get_policy("localleap", threshold=0.5, relaxed=0.9), signals([0.6, 0.4])) == [0]


def test_an_anchor_beyond_the_edge_counts_where_it_is_observed() -> None:
    """The block ends after two positions; the third is sure but may not be committed yet."""
    given = replace(signals([0.8, 0.8, 0.95]), eligible=torch.tensor([[True, True, False]]))
    policy = get_policy("localleap", radius=1)
    assert committed(policy, given) == [1]
    assert committed(policy, replace(given, observed=given.eligible)) == []


def test_rows_with_their_own_radius_share_a_batch() -> None:
    one, two = get_policy("localleap", radius=1), get_policy("localleap", radius=2, relaxed=0.5)
    assert one.structure() == two.structure()
