"""LoPA: an anchor, branches beside it, and the surest of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tacg.policies import get_policy
from tacg.types import Signals
from tests.policies.test_policies import signals

CPU = torch.device("cpu")
SURE, DOUBT = [0.95, 0.6, 0.3, 0.8], [0.1, 0.9, 0.2, 1.5]


def world(confidence: list[float] = SURE, entropy: list[float] = DOUBT, **more: Any) -> Signals:
    """Blocks of two, of which one is open."""
    count = len(confidence)
    masks, here = torch.ones(1, count, dtype=torch.bool), torch.arange(count)[None] < 2
    plain: dict[str, Any] = {
        "masked": masks, "eligible": masks, "active": here, "grid": torch.arange(count)[None] // 2,
        "current": torch.tensor([0]), "opened": torch.tensor([2]), "length": torch.tensor([count]),
        "token": torch.arange(count)[None],
    }  # fmt: skip
    return replace(signals(confidence, entropy=entropy), **plain | more)


def ahead(observed: list[list[int]], entropy: list[list[float]]) -> Signals:
    seen = torch.tensor([observed]).bool()
    return replace(signals([0.0]), observed=seen, measured={"entropy": torch.tensor([entropy])})


@pytest.mark.parametrize(("sure_by", "second", "third"), [("entropy", 2, 1), ("confidence", 3, 1)])
def test_branches_write_the_next_positions_in_order(sure_by: str, second: int, third: int) -> None:
    """0 is committed; the anchor adds nothing, each branch one position."""
    decision, _ = get_policy("lopa", branches=2, sure_by=sure_by).decide(world(), {})
    assert decision.base[0].tolist() == [True, False, False, False]
    assert decision.branches is not None
    assert decision.branches.count.tolist() == [3]
    assert [each.nonzero()[:, 0].tolist() for each in decision.branches.commit[0]] == [[], [second], [third]]
    assert decision.branches.tokens[0, 1].tolist() == [0, 1, 2, 3], "with what is proposed there"


def test_the_active_block_gets_ahead_even_if_nothing_is_sure() -> None:
    decision, _ = get_policy("lopa", threshold=0.99).decide(world(), {})
    assert decision.base[0].tolist() == [True, False, False, False], "the surest of the block"
    late = replace(world(), step=torch.tensor([8]), steps=torch.tensor([9]))
    decision, _ = get_policy("lopa", threshold=0.99).decide(late, {})
    assert decision.base[0].tolist() == [True, True, False, False], "all of it in its last step"


def test_no_more_branches_than_positions() -> None:
    for threshold, count in ((0.7, 3), (0.5, 2), (0.0, 0)):
        decision, _ = get_policy("lopa", branches=5, threshold=threshold).decide(world(), {})
        assert decision.branches is not None
        assert decision.branches.count.tolist() == [count], "the anchor and those; none if nothing is left"


def test_the_surest_on_average_goes_on() -> None:
    policy = get_policy("lopa", branches=2)
    _, state = policy.decide(world(), policy.start(1, 4, CPU))
    left = [[0, 1, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1]]
    assert policy.choose(ahead(left, [[0.0, 1, 1, 1], [0.0, 0.5, 0, 0.4], [0.0, 0, 1, 1]]), state).tolist() == [1]
    assert policy.choose(ahead(left, [[0.0, 1, 0, 0], [0.0, 0.5, 0, 0.4], [0.0, 0, 1, 1]]), state).tolist() == [0]


def test_what_is_beyond_the_open_blocks_does_not_count() -> None:
    policy = get_policy("lopa", branches=1)
    first = torch.tensor([[True, True, False, False]])
    _, state = policy.decide(world(eligible=first, opened=torch.tensor([1])), policy.start(1, 4, CPU))
    left, doubt = [[0, 1, 1, 1], [0, 0, 1, 1]], [[0.0, 0.1, 0, 0], [0.0, 0, 9, 9]]
    assert policy.choose(ahead(left, doubt), state).tolist() == [1], "nothing is left of the block: surer than anything"


def test_copies_that_were_not_forwarded_are_not_chosen() -> None:
    policy = get_policy("lopa", branches=3, threshold=0.7)
    _, state = policy.decide(world(), policy.start(1, 4, CPU))
    left = [[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    doubt = [[0.0, 2, 2, 0], [0.0, 1, 0, 0], [0.0, 0, 1.5, 0], [0.0, 0, 0, 0]]
    assert policy.choose(ahead(left, doubt), state).tolist() == [1], "the last one is nobody's"


def test_an_anchor_that_has_not_moved_does_not_compete() -> None:
    """A gate held position 0 back: the anchor is where it was."""
    policy = get_policy("lopa", branches=1)
    _, state = policy.decide(world(), policy.start(1, 4, CPU))
    doubt = [[0.0, 0.1, 0.1, 0.1], [0.0, 1, 0, 1]]
    assert policy.choose(ahead([[1, 1, 1, 1], [1, 1, 0, 1]], doubt), state).tolist() == [1]
    assert policy.choose(ahead([[0, 1, 1, 1], [0, 1, 0, 1]], doubt), state).tolist() == [0]


def test_it_opens_blocks_only_if_it_is_told_to() -> None:
    first = torch.tensor([[True, True, False, False]])
    given = world(eligible=first, opened=torch.tensor([1]))
    decision, _ = get_policy("lopa").decide(given, {})
    assert decision.open is None
    for add, opened in ((0.5, 2), (0.6, 1)):
        decision, state = get_policy("lopa", add=add).decide(given, {})
        assert decision.open is not None
        assert decision.open.tolist() == [opened]
        assert state["judged"][0].tolist() == [False, True, opened == 2, opened == 2], "a block that opens counts"
