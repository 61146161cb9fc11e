"""The laws of the design, each as a property test with hypothesis."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import tacg
from tacg import GateConfig, GateState, commit_step
from tacg.engine import loop
from tacg.engine.events import Finished
from tacg.engine.request import Decode, Request
from tacg.gate import temporal_support
from tacg.knobs import Knob, Knobs
from tacg.lazy import most_support
from tacg.policies import State, Wrapper, get_policy, policy_class, policy_names
from tacg.policies.d3llm import D3llm
from tacg.scan import Trajectories
from tacg.types import Decision, EmaContrast, Needs, Signals
from tests.worlds import MASK, ReactiveDenoiser, decode_one, scan, trajectory

Engine = functools.partial(loop.Engine, verifier=ReactiveDenoiser(99))
CLASSIC = ["schedule", "confidence", "klass", "tacg", "tacg+klass", "tacg+schedule"]  # a fallback goes by confidence
BASES = [name for name in policy_names() if not issubclass(policy_class(name), Wrapper)]
NAMES = [*policy_names(), *(f"tacg+{name}" for name in policy_names() if not name.startswith("tacg"))]
seeds = st.integers(0, 2**31)
shares = st.floats(0, 1)
gates = st.builds(
    GateConfig,
    w=st.floats(0, 3),
    beta=shares,
    support_lambda=st.floats(0, 3),
    tau_floor=shares,
    tau_escape=st.floats(0, 1.2),
    m_base=st.integers(1, 4),
    m_extra=st.integers(1, 4),
    k_extra=st.integers(0, 4),
    support=st.sampled_from(["gain", "log_ratio", "steady"]),
    gamma=st.floats(0.1, 3),
    preserve_margin=st.none() | shares,
    k_ratio=st.none() | st.floats(0, 3),
    rejoin=st.booleans(),
    max_support=st.none() | shares,
)
decodes = st.builds(
    Decode,
    gen_length=st.integers(1, 24),
    block_length=st.integers(1, 24),
    temperature=st.sampled_from([0.0, 0.0, 0.7]),
    seed=st.integers(0, 5),
    early_stop=st.booleans(),
    observe=st.sampled_from(["block", "sequence"]),
)


def values_of(each: Knob) -> st.SearchStrategy[Any]:
    """What a knob may be turned to."""
    low = each.low or 0
    if each.choices:
        found: st.SearchStrategy[Any] = st.sampled_from(each.choices)
    elif each.kind is bool:
        found = st.booleans()
    elif each.kind is int:
        found = st.integers(int(low), int(low) + 3)
    else:
        found = st.floats(low, low + 3 if each.high is None else each.high)
    return st.none() | found if each.optional else found


def policies_of(names: list[str]) -> st.SearchStrategy[tacg.Policy]:
    """Any of these policies with its knobs turned anywhere."""
    return st.sampled_from(names).flatmap(
        lambda name: st.fixed_dictionaries(
            {knob: values_of(each) for knob, each in get_policy(name).knobs().items()}
        ).map(lambda values: get_policy(name).replace(**values))
    )


policies = policies_of(NAMES)


def play(logits: torch.Tensor, config: GateConfig, threshold: float = 0.5) -> list[tacg.GateStep]:
    """The gate over a whole trajectory [steps, B, L, V], over a confidence threshold; commits leave the mask."""
    state, mask = GateState(), torch.ones(logits.shape[1:3], dtype=torch.bool)
    steps = []
    for frame in logits:
        step = commit_step(frame, mask, lambda signals: signals.confidence >= threshold, state, config, everywhere=True)
        steps.append(step)
        mask = mask & ~step.commit
    return steps


@given(seeds, gates)
def test_law_1_what_is_written_is_the_argmax_of_the_base_posterior(seed: int, config: GateConfig) -> None:
    logits = trajectory(seed, 6, 2, 7, 11)
    for frame, step in zip(logits, play(logits, config), strict=True):
        assert torch.equal(step.tokens[step.commit], frame.softmax(-1).argmax(-1)[step.commit])


@given(seeds, policies_of(BASES), decodes, gates)
def test_law_2_nothing_on_nothing_changed(seed: int, plain: tacg.Policy, decode: Decode, config: GateConfig) -> None:
    off = config.replace(k_extra=0, m_base=1)
    gated = get_policy(f"tacg+{plain.name}").replace(**plain.values(), **off.values())
    model = ReactiveDenoiser(seed)
    alone, wrapped = (Engine(model).generate([Request((3, 5), policy, decode)])[0] for policy in (plain, gated))
    assert wrapped.commits == alone.commits
    assert (wrapped.tokens, wrapped.steps) == (alone.tokens, alone.steps)


@given(seeds, gates)
def test_law_3_extras_stay_within_the_budget(seed: int, config: GateConfig) -> None:
    for step in play(trajectory(seed, 6, 3, 9, 7), config):
        assert int(step.extra.sum(dim=1).max()) <= config.k_extra
        assert not bool((step.extra & step.base).any())
        assert torch.equal(step.commit, step.extra | step.base)


@given(seeds, gates, st.integers(1, 4))
def test_law_4_a_first_observation_is_neutral(seed: int, config: GateConfig, later: int) -> None:
    """Also for a position that becomes active `later`: z - z̄ is zero there, so q equals p and p_ref equals p."""
    logits = trajectory(seed, 6, 2, 5, 9)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[:, :2] = True
    state = GateState()
    for number, frame in enumerate(logits):
        fresh = mask.clone() if number == 0 else torch.zeros_like(mask)
        if number == later:
            mask, fresh = torch.ones_like(mask), ~mask
        step = commit_step(frame, mask, torch.zeros_like(mask), state, config, everywhere=True)
        assert float(step.support[fresh].abs().sum()) < 1e-12
        assert bool((step.streak[fresh] == 1).all())


@given(seeds, gates, st.floats(-100, 100))
def test_law_5_a_constant_per_position_changes_no_decision(seed: int, config: GateConfig, size: float) -> None:
    logits = trajectory(seed, 6, 2, 6, 11)
    offsets = torch.randn(6, 2, 6, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * size
    for step, moved in zip(play(logits, config), play(logits + offsets, config), strict=True):
        assert torch.equal(step.commit, moved.commit)
        assert torch.equal(step.extra, moved.extra)
        assert torch.allclose(step.readiness, moved.readiness, atol=1e-9)


@given(seeds, st.floats(0, 4), shares)
def test_law_6_log_odds_of_the_readout(seed: int, w: float, beta: float) -> None:
    """log q(a)/q(b) = log p(a)/p(b) + w [log p(a)/p(b) - log p_ref(a)/p_ref(b)], read off the scan itself."""
    logits = trajectory(seed, 4, 3, 8, scale=1.5)
    slots = torch.arange(3)
    needs = Needs("reference", "readout", contrast=EmaContrast(w, beta))
    memories = {token: Trajectories(1, 3) for token in (2, 5)}
    for frame in logits:
        found = {
            token: scan(frame, slots, memory, needs, proposal=torch.full((3,), token))
            for token, memory in memories.items()
        }
        p, ref, q = ((found[2][name] / found[5][name]).log() for name in ("confidence", "reference", "readout"))
        assert torch.allclose(q, p + w * (p - ref), atol=1e-9)


@given(seeds, st.floats(0, 4), shares, st.sampled_from([torch.float32, torch.float64]))
def test_support_is_never_more_than_the_reference_allows(seed: int, w: float, beta: float, dtype: torch.dtype) -> None:
    slots, needs = torch.arange(6), Needs("reference", "readout", contrast=EmaContrast(w, beta))
    memory, config = Trajectories(1, 6), GateConfig(w=w, beta=beta)
    for frame in trajectory(seed, 4, 6, 9, scale=2.5, dtype=dtype):
        found = {name: values[None] for name, values in scan(frame, slots, memory, needs).items()}
        kept = {name: found[name] for name in ("reference", "readout")}
        every, none = torch.ones(1, 6, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
        signals = Signals(every, every, found["first"], found["token"], found["confidence"], none, none, kept)
        assert bool((temporal_support(signals, config) <= most_support(signals, config) + 1e-7).all())


@given(seeds, st.lists(st.tuples(st.integers(1, 9), policies, decodes), min_size=2, max_size=6), st.integers(1, 6))
def test_law_7_a_row_does_not_feel_its_neighbours(
    seed: int, rows: list[tuple[int, tacg.Policy, Decode]], max_rows: int
) -> None:
    requests = [
        Request(tuple(2 + (number + place) % 9 for place in range(length)), policy, decode)
        for number, (length, policy, decode) in enumerate(rows)
    ]
    model = ReactiveDenoiser(seed)
    together = Engine(model, max_rows=max_rows).generate(requests)
    assert together == [Engine(model).generate([request])[0] for request in requests]


@given(seeds, policies, decodes, st.none() | st.integers(1, 40))
def test_law_8_every_row_ends_within_its_budget(
    seed: int, policy: tacg.Policy, decode: Decode, steps: int | None
) -> None:
    model = ReactiveDenoiser(seed)
    blocks = len(Request((4,), policy, decode).blocks(model.spec))
    budget = None if steps is None else max(steps, blocks)
    output = Engine(model).generate([Request((4,), policy, decode.replace(steps=budget))])[0]
    assert output.steps <= (budget or decode.gen_length)
    per_step: dict[int, list[str]] = {}
    for commit in output.commits:
        per_step.setdefault(commit.step, []).append(commit.reason)
    if not policy.needs.branches and "post_edit_steps" not in policy.knobs():  # which read a full block again
        assert sorted(per_step) == list(range(1, output.steps + 1)), "every step commits something"
    if budget is None:  # one step per position: a fallback is always the only mask that its step decides to fill
        filled = [[each for each in made if each not in ("branch", "edit", "remask")] for made in per_step.values()]
        assert all(made == ["fallback"] for made in filled if "fallback" in made)


@given(
    seeds,
    policies_of(CLASSIC).filter(
        lambda policy: (
            policy.values().get("rank_by", "confidence") == "confidence"
            and not policy.values().get("rank_temperature")
            and policy.values().get("pick") != "dream"
        )
    ),
    decodes,
)
@example(
    0, get_policy("tacg", threshold=1.0, tau_floor=1.0, support_lambda=3.0, w=2.0, fallback="base"),
    Decode(gen_length=12, block_length=12, early_stop=False),
)  # fmt: skip
def test_law_8_the_fallback_is_the_readiest(seed: int, policy: tacg.Policy, decode: Decode) -> None:
    """With one step per position a fallback commits the single best-ranked eligible proposal, lowest position first."""
    key = "readiness" if "readiness" in _notes(policy) else None
    model, request = ReactiveDenoiser(seed), Request((4,), policy, decode)
    for event in Engine(model).stream([request]):
        if not isinstance(event, tacg.Step) or not any(c.reason == "fallback" for c in event.committed):
            continue
        start, stop, _ = request.blocks(model.spec)[event.block]
        eligible = [each for each in event.proposals if start <= each.position < stop]
        best = max(eligible, key=lambda each: (each.signals[key] if key else each.confidence, -each.position))
        assert [commit.position for commit in event.committed] == [best.position]


def _notes(policy: tacg.Policy) -> set[str]:
    """What ranks this policy's fallback: readiness if it promotes and is told so, else its base's confidence."""
    knobs = policy.values()
    return {"readiness"} if knobs.get("k_extra") and knobs["fallback"] == "readiness" else set()


@given(seeds, st.lists(st.tuples(policies, decodes), min_size=1, max_size=5))
@example(0, [(get_policy("tacg"), Decode(gen_length=8)), (get_policy("klass"), Decode(gen_length=3))])
def test_law_10_forwards_are_counted_where_the_model_is_called(
    seed: int, rows: list[tuple[tacg.Policy, Decode]]
) -> None:
    model = ReactiveDenoiser(seed)
    requests = [Request((2 + number, 9), policy, decode) for number, (policy, decode) in enumerate(rows)]
    for number, output in enumerate(Engine(model, max_rows=3).generate(requests)):
        seen = sum(row[0] == 2 + number for row in model.rows_seen)
        assert output.forwards == seen, "every branch is a forward"
        assert output.tpf == len(output.tokens) / seen
        assert output.positions == sum(len(row) for row in model.rows_seen if row[0] == 2 + number)


# -- law 9: no dead knobs ---------------------------------------------------------------------------------------------


def _alternatives(each: Knob, value: Any) -> list[Any]:
    """Other values of a knob that ought to matter somewhere."""
    if each.choices:
        found: list[Any] = [choice for choice in each.choices if choice != value]
    elif each.kind is bool:
        found = [not value]
    elif each.kind is int:
        found = [max(int(each.low or 0), value + delta) if value is not None else 5 + delta for delta in (-2, -1, 1, 3)]
    else:
        near = [] if value is None else [value / 10, value / 2, value * 1.1, min(value * 20, 3.0)]
        found = [x if each.high is None else min(x, each.high) for x in (*near, 0.1, 0.5, 0.9)]
    return [other for other in found if other != value]


# Knobs that act only when another one is set: the setting under which they must show.
CONTEXT = {
    "gamma": {"support": "log_ratio", "support_lambda": 2.0},
    "eps": {"support": "log_ratio", "support_lambda": 2.0, "gamma": 9.0, "k_extra": 1},
    "preserve_margin": {"m_base": 4, "tau_escape": 2.0},
    "m_base": {"tau_escape": 2.0, "k_extra": 0},
    "m": {"tau_escape": 2.0, "kl_extra": 9.0, "threshold": 0.6},
    "kl_extra": {"tau_escape": 2.0, "m": 1, "threshold": 0.6},
    "allow_empty": {"tau_escape": 2.0, "m": 1},
    "w": {"support_lambda": 2.0},
    "beta": {"support_lambda": 2.0},
    "tau_floor": {"m_extra": 1, "m": 1},
    "k_ratio": {"k_extra": 4, "m_extra": 1},
    "rejoin": {"threshold": 0.3, "m_base": 4, "m_extra": 1, "tau_escape": 2.0},
    "last_time": {"pace": "linspace", "steps": 6},
    "fallback": {"support_lambda": 3.0, "threshold": 1.0, "w": 2.0, "tau_floor": 1.0},
    "strict": {"threshold": 1.0, "tau_escape": 2.0, "m": 1, "m_base": 1, "kl_threshold": 100.0, "history": 1},
    "seed": {"temperature": 0.8},
    "add": {"block_length": 5},
    "ahead": {"block_length": 5, "bound": 1.0},
    "auto.add": {"block_length": 5, "bound": 1.0, "ahead": 1.0},
    "suffix": {"block_length": 5, "suffix": 2},
    "lookahead": {"lookahead": 3},
    "relaxed": {"threshold": 0.9},
    "radius": {"threshold": 0.99, "relaxed": 0.1, "radius": 1},
    "low": {"threshold": 0.99, "k": 2},
    "k": {"threshold": 0.99, "low": 0.9, "k": 2},
    "remask": {"threshold": 0.9, "low": 0.3},
    "early": {"region_start": 3, "early": 2.0},
    "middle": {"region_start": 0, "region_length": 20, "early": 99.0, "middle": 1.0, "late": 99.0, "threshold": 1.0},
    "late": {"region_start": 0, "region_length": 20, "early": 99.0, "middle": 99.0, "late": 2.0},
    "window": {"block_length": 5, "max_drift": 0.5},
    "max_drift": {"block_length": 5, "max_drift": 0.5, "threshold": 1.0},
    "drift_lambda": {"block_length": 5, "max_drift": 0.5},
    "shape": {"high": 4.0, "low": 1.0, "threshold": 1.0, "max_change": None},
    "high": {"high": 4.0, "low": 1.0, "threshold": 1.0, "max_change": None},
    "sched.low": {"high": 4.0, "low": 1.0, "threshold": 1.0, "max_change": None},
    "curvature": {"high": 4.0, "low": 1.0, "threshold": 1.0, "max_change": None, "shape": "exponential"},
    "max_change": {"high": 4.0, "low": 1.0, "threshold": 1.0},
    "tacg+klass.pick": {"fallback": "base"},
    "tacg-released-dream-ema.beta": {"m": 1, "tau_escape": 2.0, "support_lambda": 1.0, "tau_floor": 0.0},
    "region_start": {"early": 2.0, "middle": 2.0, "late": 2.0},
    "region_length": {"region_start": 3, "early": 2.0, "middle": 2.0, "late": 2.0},
}


def _behaviour(policy: tacg.Policy, settings: dict[str, Any]) -> list[Any]:
    """Everything that a decode reports, over a few random worlds; EOS is common enough to end some of them."""
    shown = []
    for seed in range(10):
        # The last worlds are so sure of themselves that confidences of exactly 1 occur.
        model = ReactiveDenoiser(seed, vocab=9, scale=2.0 + seed % 3 if seed < 8 else 200.0)
        output = decode_one(model, (3, 4), policy, **{"gen_length": 20, "block_length": 20} | settings)
        shown.append((output.commits, output.tokens, output.steps))
    return shown


@pytest.mark.parametrize("name", [*policy_names(), "tacg+klass"])
def test_law_9_no_dead_knobs_in_policies(name: str) -> None:
    policy = get_policy(name)
    if "threshold" in policy.knobs():
        policy = policy.replace(threshold=0.5)
    if "kl_threshold" in policy.knobs():
        policy = policy.replace(kl_threshold=0.5)
    if "tau_floor" in policy.knobs():
        policy = policy.replace(threshold=0.9, tau_floor=0.2, tau_escape=0.9)
    if "k_extra" in policy.knobs():
        policy = policy.replace(k_extra=1)
    if "kl_extra" in policy.knobs():
        policy = policy.replace(kl_extra=9.0, threshold=0.6, support_lambda=0.5, m=2)
    dead = []
    for each in policy.knobs().values():
        context = CONTEXT.get(f"{name}.{each.name}", CONTEXT.get(each.name, {}))
        decode = {key: value for key, value in context.items() if key in Decode().knobs()}
        here = policy.replace(**{key: value for key, value in context.items() if key in policy.knobs()})
        before = _behaviour(here, decode)
        others = _alternatives(each, here.values()[each.name])
        if not any(_behaviour(here.replace(**{each.name: other}), decode) != before for other in others):
            dead.append(each.name)
    assert not dead


def test_law_9_no_dead_knobs_in_the_decode() -> None:
    policy: Knobs = get_policy("confidence", threshold=0.5)
    dead = []
    for each in Decode().knobs().values():
        if each.name in ("scan", "memory"):  # they change what a decode costs, not what it decides: tests/scan
            continue
        settings = {"gen_length": 20, "block_length": 20} | CONTEXT.get(each.name, {})
        # What is observed beyond the block matters only to a policy that remembers.
        chosen = get_policy("tacg", threshold=0.5, tau_floor=0.3) if each.name == "observe" else policy
        settings |= {"block_length": 10} if each.name == "observe" else {}
        before = _behaviour(chosen, settings)  # type: ignore[arg-type]
        value = Decode(**settings).values()[each.name]
        others = _alternatives(each, value)
        if not any(_behaviour(chosen, settings | {each.name: other}) != before for other in others):  # type: ignore[arg-type]
            dead.append(each.name)
    assert not dead
    assert _behaviour(policy, {"suppress": (2, 3, 4)}) != _behaviour(policy, {})  # type: ignore[arg-type]


@given(seeds, policies, decodes)
def test_law_11_lazy_equals_eager(seed: int, policy: tacg.Policy, decode: Decode) -> None:
    """A decode that is watched measures everything, one that is not measures what matters: the same commits."""
    requests = [Request((5, number), policy, decode) for number in range(3)]
    watched = Engine(ReactiveDenoiser(seed)).stream(requests, detail=True)
    eager = {event.row: event.output for event in watched if isinstance(event, Finished)}
    lazy = Engine(ReactiveDenoiser(seed)).generate(requests)
    assert [eager[row] for row in sorted(eager)] == lazy


@given(seeds, policies, decodes)
def test_law_12_monotone_unless_it_says_so(seed: int, policy: tacg.Policy, decode: Decode) -> None:
    """What does not revise writes each position once; what is settled stays as it is, whatever the policy."""
    settled, before = 0, ()
    for event in Engine(ReactiveDenoiser(seed)).stream([Request((4,), policy, decode)]):
        if isinstance(event, tacg.Step):
            assert event.settled >= settled
            assert event.canvas[:settled] == before
            settled, before = event.settled, event.canvas[: event.settled]
            assert MASK not in before
        elif isinstance(event, Finished):
            places = [commit.position for commit in event.output.commits]
            reasons = {commit.reason for commit in event.output.commits}
            if not policy.revises:
                assert len(places) == len(set(places))
                assert not reasons & {"remask", "edit"}
            assert event.output.tokens[:settled] == before[: len(event.output.tokens)]


@dataclass(frozen=True)
class OneBlock(D3llm):
    """The same rule, but nothing is ever opened early."""

    @property
    def needs(self) -> Needs:
        return Needs("entropy")

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        decision, state = super().decide(signals, state)
        return replace(decision, open=None), state


@given(seeds, decodes, st.floats(0, 2))
def test_law_15_one_block_open_is_a_decode_by_blocks(seed: int, decode: Decode, threshold: float) -> None:
    """d3llm that opens a block when the one before is full, against a policy that knows one block only."""
    model = ReactiveDenoiser(seed)
    several, single = (
        Engine(model).generate([Request((4, 7), policy, decode)])[0]
        for policy in (D3llm(threshold=threshold, add=1.0), OneBlock(threshold=threshold))
    )
    assert (several.tokens, several.commits, several.steps) == (single.tokens, single.commits, single.steps)


@given(seeds, policies, decodes, st.data())
def test_a_canvas_keeps_what_is_given(seed: int, policy: tacg.Policy, decode: Decode, data: st.DataObject) -> None:
    """Holes anywhere, each filled once or left masked after an end of text; nothing else is written."""
    canvas = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=24).filter(lambda ids: MASK in ids))
    request = Request((4,), policy, decode.replace(gen_length=len(canvas), early_stop=False), tuple(canvas))
    output = Engine(ReactiveDenoiser(seed)).generate([request])[0]
    holes = {place for place, token in enumerate(canvas) if token == MASK}
    assert {commit.position for commit in output.commits} == holes
    assert all(
        new == old for place, (new, old) in enumerate(zip(output.tokens, canvas, strict=True)) if place not in holes
    )
    assert output.steps <= len(holes)
