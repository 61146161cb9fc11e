"""The budget of doubts on hand-made signals."""

from __future__ import annotations

from dataclasses import replace

import torch

from tacg.policies import get_policy
from tests.policies.test_policies import committed, signals

ALONE = {"lean": 0, "ahead": 0.0}  # the budget alone, one block at a time


def ready(knobs: dict[str, float], proposals: list[list[int]], confidence: list[float]) -> list[list[int]]:
    """What is ready in each step; `proposals` are the tokens of each step."""
    policy = get_policy("auto", **ALONE | knobs)
    state = policy.start(1, len(confidence), torch.device("cpu"))
    found = []
    for step, tokens in enumerate(proposals):
        given = signals(confidence, step=step)
        given = replace(given, token=torch.tensor([tokens]), first=torch.full_like(given.first, step == 0))
        decision, state = policy.decide(given, state)
        found.append(decision.base[0].nonzero()[:, 0].tolist())
    return found


def test_all_doubts_count_and_add_up() -> None:
    sure = [0.75, 0.5, 0.875, 0.25]
    for bound, passing in ((0.1, []), (0.125, [2]), (0.375, [0, 2]), (0.8, [0, 2]), (0.875, [0, 1, 2])):
        assert ready({"bound": bound}, [[1] * 4], sure) == [passing], bound


def test_what_persists_costs_less_and_what_flips_costs_all_of_it_again() -> None:
    knobs, sure = {"bound": 0.5, "discount": 0.5, "least": 0.125}, [0.75, 0.5, 0.25]
    steady, flipping = [1, 1, 1], [1, 1, 2]
    assert ready(knobs, [steady, steady, steady], sure) == [[0], [0, 1], [0, 1, 2]]
    assert ready(knobs, [steady, steady, flipping], sure) == [[0], [0, 1], [0, 1]]


def test_there_is_a_least_cost() -> None:
    """Halved each step, but not below a half: the third position never fits."""
    knobs, sure = {"bound": 0.5, "discount": 0.5, "least": 0.5}, [0.75, 0.5, 0.25]
    assert ready(knobs, [[1, 1, 1]] * 5, sure)[1:] == [[0, 1]] * 4
    assert ready(knobs | {"least": 0.0}, [[1, 1, 1]] * 5, sure)[-1] == [0, 1, 2]


def test_a_lean_step_gets_one_more() -> None:
    given = signals([0.9, 0.8, 0.99, 0.98])
    for lean, passing in ((0, [2, 3]), (2, [2, 3]), (3, [0, 2, 3])):
        assert committed(get_policy("auto", bound=0.04, lean=lean, ahead=0.0), given) == passing


def test_later_blocks_take_part_only_if_nearly_certain_and_open_early() -> None:
    """Blocks of two, two of them open; the budget is shared, and later blocks have a smaller one of their own."""
    given = replace(
        signals([0.9, 0.5, 0.96, 0.97, 0.5, 0.5]), masked=torch.ones(1, 6, dtype=torch.bool),
        grid=torch.tensor([[0, 0, 1, 1, 2, 2]]), current=torch.tensor([0]), opened=torch.tensor([2]),
        eligible=torch.tensor([[True] * 4 + [False] * 2]), active=torch.tensor([[True, True] + [False] * 4]),
        length=torch.tensor([6]),
    )  # fmt: skip
    cases = ((0.2, 0.05, [0, 3], 3), (0.2, 0.08, [0, 2, 3], 3), (0.05, 0.08, [3], 3), (0.2, 0.01, [0], 2))
    for bound, ahead, passing, opened in cases:
        policy = get_policy("auto", bound=bound, ahead=ahead, lean=0, add=0.5)
        decision, _ = policy.decide(given, policy.start(1, 6, torch.device("cpu")))
        assert decision.base[0].nonzero()[:, 0].tolist() == passing, (bound, ahead)
        assert decision.open is not None
        assert decision.open.tolist() == [opened]
    lean = get_policy("auto", bound=0.05, ahead=0.08, lean=3)
    decision, _ = lean.decide(given, lean.start(1, 6, torch.device("cpu")))
    assert decision.base[0].nonzero()[:, 0].tolist() == [0, 3], "the one more is from the active block"
    assert get_policy("auto", ahead=0.0).needs.scope == "block"
