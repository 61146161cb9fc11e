"""The discounted entropy budget on hand-made signals."""

from __future__ import annotations

from dataclasses import replace

import torch

from tacg.policies import get_policy
from tests.policies.test_policies import committed, signals


def ready(policy_knobs: dict[str, float], proposals: list[list[int]], entropy: list[float]) -> list[list[int]]:
    """What is ready in each step; `proposals` are the tokens of each step."""
    policy = get_policy("auto", **policy_knobs)
    state = policy.start(1, len(entropy), torch.device("cpu"))
    found = []
    for step, tokens in enumerate(proposals):
        given = signals([0.5] * len(entropy), step=step, entropy=entropy)
        given = replace(given, token=torch.tensor([tokens]), first=torch.full_like(given.first, step == 0))
        decision, state = policy.decide(given, state)
        found.append(decision.base[0].nonzero()[:, 0].tolist())
    return found


def test_at_first_sight_it_is_the_entropy_bound() -> None:
    for bound in (0.0, 0.25, 0.35, 1.0):
        given = signals([0.5] * 4, entropy=[0.2, 0.4, 0.1, 0.3])
        assert committed(get_policy("auto", bound=bound), given) == committed(get_policy("eb", bound=bound), given)


def test_what_persists_costs_less_and_what_flips_costs_all_of_it_again() -> None:
    knobs = {"bound": 0.25, "discount": 0.5, "least": 0.125}
    steady, flipping = [1, 1, 1], [1, 1, 2]
    assert ready(knobs, [steady, steady, steady], [0.2, 0.4, 0.8]) == [[0, 1], [0, 1], [0, 1, 2]]
    assert ready(knobs, [steady, steady, flipping], [0.2, 0.4, 0.8]) == [[0, 1], [0, 1], [0, 1, 2]], "the last is free"
    assert ready(knobs, [[2, 1, 1], steady, [2, 1, 1]], [0.2, 0.4, 0.8])[-1] == [0, 1], "0.1 + 0.2 is too much"


def test_there_is_a_least_cost() -> None:
    """Halved each step, but not below a half: the third position never fits."""
    knobs = {"bound": 0.25, "discount": 0.5, "least": 0.5}
    assert ready(knobs, [[1, 1, 1]] * 5, [0.2, 0.4, 0.8])[1:] == [[0, 1]] * 4
    assert ready(knobs | {"least": 0.0}, [[1, 1, 1]] * 5, [0.2, 0.4, 0.8])[-1] == [0, 1, 2]
