"""The authors' code, difference by difference: small scripts on which it does not do what the paper's rule does."""

from __future__ import annotations

import math

import pytest
import torch

from tacg import TacgError
from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request, resolve
from tacg.models.scripted import ScriptedDenoiser
from tacg.policies import Policy, get_policy
from tests.policies.test_policies import signals
from tests.worlds import ReactiveDenoiser

VOCAB = 8
Frame = list[tuple[int, float]]  # token and confidence of every position


def decode(
    policy: Policy, frames: list[Frame], block: int | None = None, observe: str = "block",
    dtype: torch.dtype = torch.float64,
) -> list[str]:  # fmt: skip
    """What each step commits: "0b 2e" is position 0 by the base policy and 2 as an extra; f is the fallback.

    The last frame stays.
    """
    width = len(frames[0])
    script = torch.zeros(len(frames), 1 + width, VOCAB, dtype=torch.float64)
    for step, frame in enumerate(frames):
        for position, (token, sure) in enumerate(frame):
            script[step, 1 + position, token] = math.log(sure / (1 - sure) * (VOCAB - 2))
    script[..., 1] = -math.inf  # the mask
    settings = Decode(gen_length=width, block_length=block or width, early_stop=False, observe=observe)
    output = Engine(ScriptedDenoiser([script.to(dtype)])).generate([Request((0,), policy, settings)])[0]
    steps = [[each for each in output.commits if each.step == step] for step in range(1, output.steps + 1)]
    return [" ".join(f"{each.position}{each.reason[0]}" for each in sorted(one, key=_place)) for one in steps]


def _place(commit: object) -> int:
    return commit.position  # type: ignore[attr-defined,no-any-return]


PAPER = {"threshold": 0.9, "tau_floor": 0.8, "tau_escape": 0.96, "m_base": 3, "m_extra": 3, "k_extra": 1}
LLADA = {"threshold": 0.9, "strict": True, "tau_floor": 0.8, "tau_escape": 0.96, "m": 3, "k_extra": 1}


def test_a_filtered_promotion_is_not_replaced() -> None:
    """Position 0 is surer but keeps changing its mind; 1 persists. 2 and 3 only keep the first steps going."""
    frames = [[(2 + step % 2, 0.85), (4, 0.82), (5, 0.97), (5, 0.97 if step else 0.5)] for step in range(4)]
    assert decode(get_policy("tacg", **PAPER), frames)[:3] == ["2b", "3b", "1e"]
    assert decode(get_policy("tacg-released", **LLADA), frames)[:3] == ["2b", "3b", "0f"], (
        "the readiest that was picked"
    )


def test_what_was_held_back_is_not_promoted() -> None:
    frames = [[(2, 0.93), (3, 0.92), (4, 0.5)]]
    rejoined = get_policy("tacg", **PAPER | {"m_extra": 1, "k_extra": 2})
    assert decode(rejoined, frames)[0] == "0e 1e"
    assert decode(get_policy("tacg-released", **LLADA | {"k_extra": 2}), frames)[:2] == ["0f", "1f"]


def test_the_gate_never_stalls_and_one_length_serves_all() -> None:
    """Persistence of 3 holds everything back; in the third step base commits and promotions pass together."""
    frames = [[(2, 0.94), (3, 0.93), (4, 0.92), (5, 0.85)]]
    assert decode(get_policy("tacg-released", **LLADA), frames) == ["0f", "1f", "2b 3e"]


def test_promotions_must_be_calm_over_klass() -> None:
    """Position 0 is above the floor, but its posterior has not come to rest: only the fallback takes it."""
    frames = [[(2, 0.85), (3, 0.6), (4, 0.5)]]
    calm = {"kl_threshold": 0.001, "history": 2}
    assert decode(get_policy("tacg+klass", **PAPER | calm | {"m_extra": 1}), frames)[0] == "0e"
    assert decode(get_policy("tacg-released+klass", **LLADA | calm | {"m": 1}), frames)[0] == "0f"
    rested = [[(2, 0.9), (3, 0.88), (4, 0.86), (5, 0.84), (6, 0.82)]]
    assert decode(get_policy("tacg-released+klass", **LLADA | calm | {"m": 1}), rested)[:3] == ["0f", "1f", "2e"]


@pytest.mark.parametrize(("sure", "promoted"), [(4, 1), (5, 2)])
def test_the_budget_follows_the_base_set(sure: int, promoted: int) -> None:
    frames = [[(2, 0.97)] * sure + [(3, 0.85)] * 3]
    step = decode(get_policy("tacg-released", **LLADA | {"k_extra": 2, "m": 1}), frames)[0]
    assert step.count("b") == sure
    assert step.count("e") == promoted


def test_an_empty_base_set_may_forbid_promotions() -> None:
    frames = [[(2, 0.85), (3, 0.84), (4, 0.3)]]
    assert decode(get_policy("tacg-released", **LLADA | {"m": 1}), frames)[0] == "0e"
    strict = get_policy("tacg-released", **LLADA | {"m": 1, "allow_empty": False})
    assert decode(strict, frames)[0] == "0f"


def test_the_fallback_is_by_readiness_without_a_floor() -> None:
    """With the large λ of the HumanEval script what has gained most goes first, sure or not."""
    frames = [[(2, 0.2), (3, 0.55), (4, 0.6)], [(2, 0.5), (3, 0.55), (4, 0.6)]]
    first = {"w": 0.38, "support_lambda": 2.0}
    assert decode(get_policy("tacg-released", **LLADA | first), frames)[:2] == ["2f", "0f"]
    assert decode(get_policy("tacg-released", **LLADA | first | {"support_lambda": 0.0}), frames)[:2] == ["2f", "1f"]


def test_at_the_floor_is_below_it_where_the_threshold_is_strict() -> None:
    for strict, expected in ((True, []), (False, [0])):
        policy = get_policy("tacg-released", **LLADA | {"m": 1, "strict": strict, "tau_floor": 0.75})
        given = signals([0.75, 0.5], reference=[0.7, 0.5], readout=[0.75, 0.5])
        decision, _ = policy.decide(given, policy.start(1, 2, torch.device("cpu")))
        assert decision.extra is not None
        assert decision.extra[0].nonzero()[:, 0].tolist() == expected


def test_history_outlives_its_block() -> None:
    """Position 1, alone in the second block, has persisted while the first was decoded."""
    frames = [[(2, 0.5), (3, 0.5), (4, 0.93), (5, 0.92)]]
    policy = get_policy("tacg-released", **LLADA)
    assert decode(policy, frames, block=2, observe="sequence") == ["0f", "1f", "2b 3b"]
    assert decode(policy, frames, block=2) == ["0f", "1f", "2f", "3f"]
    assert resolve("tacg-released:llada/gsm8k", {})[1].observe == "sequence"


# -- Dream ------------------------------------------------------------------------------------------------------------

DREAM = {"threshold": 0.9, "tau_floor": 0.8, "tau_escape": 0.96, "m": 3, "k_extra": 1}


def test_dreams_base_set_passes_no_gate() -> None:
    frames = [[(2, 0.93), (3, 0.92), (4, 0.5), (5, 0.5)]]
    assert decode(get_policy("tacg", **PAPER), frames)[0] == "0f"
    assert decode(get_policy("tacg-released-dream", **DREAM), frames)[0] == "0b 1b"


def test_dreams_promotions_persist() -> None:
    frames = [
        [(2, 0.85), (3, 0.84), (4, 0.97), (5, 0.97 if step else 0.3), (6, 0.97 if step > 1 else 0.3)]
        for step in range(3)
    ]
    assert decode(get_policy("tacg-released-dream", **DREAM), frames)[:3] == ["2b", "3b", "0e 4b"]
    nothing = [[(2, 0.85), (3, 0.84), (4, 0.3), (5, 0.3)]]
    assert decode(get_policy("tacg-released-dream", **DREAM | {"m": 1, "allow_empty": False}), nothing)[0] == "0f"


def test_dreams_escape_adds_what_klass_holds_back() -> None:
    frames = [[(2, 0.97), (3, 0.98), (4, 0.3)]]
    calm = {"kl_threshold": 0.001, "history": 2}
    assert decode(get_policy("tacg+klass", **PAPER | calm | {"k_extra": 0}), frames)[0] == "1f"
    assert decode(get_policy("tacg-released-dream+klass", **DREAM | calm), frames)[0] == "0e 1e"


def test_dreams_support_is_the_gain_since_the_step_before() -> None:
    """No EMA and no w; at a first observation all of the confidence is gain."""
    policy = get_policy("tacg-released-dream", **DREAM)
    first = signals([0.6, 0.5], reference=[0.6, 0.5], sharp=[0.9, 0.8])
    state = policy.start(1, 2, torch.device("cpu"))
    assert policy.decide(first, state)[0].notes["support"][0].tolist() == pytest.approx([0.6, 0.5])
    assert policy.needs.contrast is not None
    assert policy.needs.contrast.beta == 0
    frames = [[(2, 0.3), (3, 0.81), (4, 0.99)], [(2, 0.81), (3, 0.82), (4, 0.99)]]
    quick = DREAM | {"m": 1, "support_lambda": 1.0, "tau_escape": 2.0}
    assert decode(get_policy("tacg-released-dream", **quick), [frames[0], frames[1]])[0] == "1e 2b"
    late = [[(2, 0.3), (3, 0.7), (4, 0.7)], [(2, 0.81), (3, 0.82), (4, 0.85)]]
    assert decode(get_policy("tacg-released-dream", **quick | {"allow_empty": True}), late)[1] == "0e"


def test_dreams_other_rule_averages_confidence() -> None:
    """Three positions were sure and are not now; their averages still are. There is no budget."""
    knobs = {"threshold": 0.9, "kl_threshold": 0.0, "m": 3, "kl_extra": 9.0, "tau_escape": 2.0}
    frames = [[(3, 0.96), (3, 0.95)] + [(2, 0.94)] * 3] * 2 + [[(3, 0.9)] * 2 + [(2, 0.89)] * 3]
    steps = decode(get_policy("tacg-released-dream-ema+klass", **knobs), frames)
    assert steps == ["0f", "1f", "2e 3e 4e"]
    busy = get_policy("tacg-released-dream-ema+klass", **knobs | {"kl_extra": 0.0})
    assert decode(busy, frames)[2].endswith("f")


@pytest.mark.parametrize(
    "name", ["klass", "tacg-released-dream", "tacg-released-dream+klass", "tacg-released-dream-ema+klass"]
)
def test_dreams_fallback_takes_the_first_that_can_only_be_drawn(name: str) -> None:
    """At temperature 0.2, 0.7 sure is as good as certain: position 1 goes before 3, and 0 goes by sureness at last."""
    knobs = {"pick": "dream", "kl_threshold": 0.0} if "klass" in name else {}
    frames = [[(2, 0.2), (3, 0.6), (4, 0.25), (5, 0.7)]]
    assert decode(get_policy(name, **knobs), frames) == ["1f", "3f", "2f", "0f"]


def test_what_float32_calls_certain_still_has_an_order() -> None:
    """Confidences of 1 - 1e-9 and closer: the surest goes first, by the mass of all other tokens."""
    frames = [[(2, 1 - 1e-9), (3, 1 - 1e-12), (4, 1 - 1e-10)]]
    for name in ("klass", "tacg-released+klass"):
        policy = get_policy(name, kl_threshold=0.0)
        assert decode(policy, frames, dtype=torch.float32) == ["1f", "2f", "0f"]


def test_presets_say_what_acts_and_what_the_scripts_pass() -> None:
    acts, passed = (get_policy(f"tacg-released-dream:{model}/math500").values() for model in ("dream", "dream-script"))
    assert (acts["k_extra"], acts["tau_floor"], acts["allow_empty"]) == (1, 0.80, False)
    assert (passed["k_extra"], passed["tau_floor"], passed["allow_empty"]) == (2, 0.72, True)


@pytest.mark.parametrize("name", ["tacg-released", "tacg-released-dream", "tacg-released-dream-ema"])
def test_released_policies_keep_the_laws_of_the_engine(name: str) -> None:
    """Alone or in a batch, watched or not: the same commits."""
    for base in ("confidence", "klass"):
        policy = get_policy(f"{name}+{base}", threshold=0.6, tau_floor=0.3)
        for observe in ("block", "sequence"):
            settings = Decode(gen_length=12, block_length=6, observe=observe)
            requests = [Request((3, 4 + number), policy, settings) for number in range(3)]
            together = Engine(ReactiveDenoiser(0)).generate(requests)
            assert together == [Engine(ReactiveDenoiser(0)).generate([each])[0] for each in requests]
            events = Engine(ReactiveDenoiser(0)).stream(requests, detail=True)
            watched = {event.row: event.output for event in events if hasattr(event, "output")}
            assert [watched[number] for number in range(3)] == together
    with pytest.raises(TacgError, match="needs a base policy with a threshold, 'schedule' has none"):
        get_policy(f"{name}+schedule")
