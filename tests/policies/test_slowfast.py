"""SlowFast: how far a cycle goes, and what is committed in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tacg.policies import Policy, get_policy
from tests.policies.test_policies import signals


def play(policy: Policy, *steps: list[float]) -> tuple[list[list[int]], list[int]]:
    """What each step commits, and the end of its cycle. Committed positions stay so, whatever is said of them later."""
    masks = torch.ones(1, len(steps[0]), dtype=torch.bool)
    state, ready, ends = policy.start(1, len(steps[0]), torch.device("cpu")), [], []
    for number, confidence in enumerate(steps):
        given = replace(signals(confidence, step=number), eligible=masks, observed=masks)
        decision, state = policy.decide(given, state)
        ready.append(decision.base[0].nonzero()[:, 0].tolist())
        ends.append(int(state["end"][0]))
        masks = masks & ~decision.base
    return ready, ends


LOW = [0.5, 0.4, 0.35, 0.1, 0.1, 0.1]


def test_several_high_ones_or_the_surest() -> None:
    ready, _ = play(get_policy("slowfast"), [0.95, 0.1, 0.9, 0.5], [0.0, 0.1, 0.0, 0.95])
    assert ready == [[0, 2], [3]]
    ready, _ = play(get_policy("slowfast"), [0.95, 0.1, 0.89, 0.5])
    assert ready == [[0]]


def test_two_guesses_that_agree_settle_the_end() -> None:
    """Up to 2, then up to 3, which is close enough; the third step no longer changes the cycle's end."""
    wider = [0.0, 0.4, 0.35, 0.3, 0.1, 0.1]
    _, ends = play(get_policy("slowfast", k=3), LOW, wider, [0.0, 0.0, 0.4, 0.4, 0.4, 0.4])
    assert ends == [3, 4, 4]


def test_guesses_that_disagree_are_averaged() -> None:
    far = [0.0, 0.4, 0.35, 0.1, 0.1, 0.3]
    _, ends = play(get_policy("slowfast", k=2), LOW, far)
    assert ends == [3, (3 + 6) // 2]


def test_fast_steps_stay_before_the_end_and_the_next_cycle_begins_there() -> None:
    """One slow step: the cycle is 0 to 2. What is sure beyond it waits until the next one."""
    sure_beyond = [0.0, 0.4, 0.35, 0.99, 0.99, 0.99]
    ready, ends = play(get_policy("slowfast", k=1), LOW, sure_beyond, sure_beyond, sure_beyond)
    assert ready == [[0], [1], [2], [3, 4, 5]]
    assert ends == [3, 3, 3, 6]


def test_a_cycle_of_nothing_gets_ahead_by_one() -> None:
    """No position is in reach, so the cycle is its first position; slow steps commit anywhere."""
    bleak = [0.1, 0.1, 0.2, 0.1]
    ready, ends = play(get_policy("slowfast", k=1), bleak, bleak, bleak)
    assert ready == [[2], [0], [1]]
    assert ends == [1, 1, 2]


@pytest.mark.parametrize("first", [0, 2])
def test_a_block_begins_with_its_first_mask(first: int) -> None:
    """Whatever the state holds of the block before."""
    policy = get_policy("slowfast", k=1)
    masks = torch.arange(6)[None] >= first
    stale = {name: torch.full_like(value, 1) for name, value in policy.start(1, 6, torch.device("cpu")).items()}
    _, state = policy.decide(replace(signals([0.1] * 6), eligible=masks, observed=masks), stale)
    assert {name: value.tolist() for name, value in state.items()} == {
        "first": [first], "end": [first + 1], "guess": [first + 1], "slow": [1], "settled": [False],
    }  # fmt: skip
