"""Names, knobs, presets; and each policy's own rule on hand-made signals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
import torch

import tacg
from tacg import Decision, Needs, TacgError
from tacg.engine.request import Decode, resolve
from tacg.policies import Policy, State, get_policy, policy_names, presets, register
from tacg.policies.dapd import ROUNDS, independent_set
from tacg.scan import Trajectories
from tacg.types import Signals, top
from tests.worlds import scan


def signals(confidence: list[float], step: int = 0, steps: int = 9, **measured: list[float]) -> Signals:
    sure = torch.tensor([confidence])
    seen = torch.ones_like(sure, dtype=torch.bool)
    return Signals(
        observed=seen, eligible=seen, first=seen, token=torch.zeros(1, len(confidence), dtype=torch.int64),
        confidence=sure, step=torch.tensor([step]), steps=torch.tensor([steps]),
        measured={name: torch.tensor([values]) for name, values in measured.items()},
    )  # fmt: skip


def committed(policy: Policy, given: Signals) -> list[int]:
    state = policy.start(1, given.confidence.shape[1], torch.device("cpu"))
    return policy.decide(given, state)[0].base[0].nonzero()[:, 0].tolist()


def test_threshold_and_strictness() -> None:
    assert committed(get_policy("confidence", threshold=0.5), signals([0.5, 0.4, 0.6])) == [0, 2]
    assert committed(get_policy("confidence", threshold=0.5, strict=True), signals([0.5, 0.4, 0.6])) == [2]


def test_factor_moves_the_bar_with_the_crowd() -> None:
    """(n + 1)(1 - c_n) <= 1: the second may be 0.67 sure, the third must be 0.75."""
    policy = get_policy("confidence", factor=1.0)
    assert committed(policy, signals([0.1, 0.7, 0.2])) == [1], "the surest always"
    assert committed(policy, signals([0.68, 0.7, 0.74])) == [1, 2]
    assert committed(policy, signals([0.76, 0.8, 0.9])) == [0, 1, 2]


@pytest.mark.parametrize(("rank_by", "first"), [("confidence", 0), ("margin", 1), ("entropy", 2), ("random", 3)])
def test_schedule_ranks_by_what_it_is_told(rank_by: str, first: int) -> None:
    given = signals([0.9, 0.1, 0.1, 0.1], margin=[0, 0.9, 0, 0], entropy=[1, 1, 0.1, 1], noise=[0.1, 0.1, 0.1, 0.8])
    assert committed(get_policy("schedule", rank_by=rank_by), given) == [first]


def test_dreams_pace() -> None:
    """floor(masks (1 - s/t)): with ten masks in four steps 2, 3, 4 while they are left, and all in the last."""
    policy = get_policy("schedule", pace="linspace")
    counts = [
        len(committed(policy, signals([0.5] * left, step=step, steps=4))) for step, left in enumerate([10, 8, 5, 3])
    ]
    assert counts == [2, 2, 2, 3]


def test_klass_needs_calm_over_its_whole_window() -> None:
    policy = get_policy("klass", threshold=0.5, kl_threshold=0.1, history=2)
    state = policy.start(1, 2, torch.device("cpu"))
    ready = []
    for step, kl in enumerate([[27.0, 27.0], [0.01, 0.01], [0.01, 0.5], [0.01, 0.01], [0.01, 0.01]]):
        given = signals([0.6, 0.6], step=step, kl=kl)
        if step:
            given = Signals(**{name: getattr(given, name) for name in Signals.__dataclass_fields__} | {
                "first": torch.zeros(1, 2, dtype=torch.bool)})  # fmt: skip
        decision, state = policy.decide(given, state)
        ready.append(decision.base[0].tolist())
    assert ready == [[False, False], [False, False], [True, False], [True, False], [True, True]]


def test_undeclared_signals_are_refused_with_advice() -> None:
    with pytest.raises(TacgError, match="`margin` was not measured: name it in the policy's `needs`"):
        _ = signals([0.5]).margin
    with pytest.raises(TacgError, match="signals out of margin"):
        Needs("confidense")
    with pytest.raises(TacgError, match="contrast=EmaContrast"):
        Needs("readout")
    with pytest.raises(TacgError, match='`scope` must be "open" or "answer" for a policy that proposes branches'):
        Needs(branches=2)
    with pytest.raises(TacgError, match="branches can neither read attention nor use a verifier"):
        Needs(scope="open", branches=2, attention=1.0)


def test_top_takes_a_number_per_row_and_the_lowest_of_equals() -> None:
    score = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 9.0]])
    among = torch.tensor([[True] * 4, [True, True, True, False]])
    chosen = top(score, among, torch.tensor([1, 2]))
    assert chosen.tolist() == [[False, True, False, False], [True, True, False, False]]
    assert top(score, among, -3).sum() == 0


# -- the register -----------------------------------------------------------------------------------------------------


def test_spellings() -> None:
    assert get_policy("tacg") == get_policy("tacg+confidence")
    assert get_policy("tacg+klass").label == "tacg+klass"
    assert get_policy("tacg", threshold=0.7, k_extra=1).label == "tacg(threshold=0.7, k_extra=1)"
    assert get_policy(get_policy("klass"), history=3).knobs()["history"].symbol == "n"
    assert hash(get_policy("tacg")) == hash(get_policy("tacg"))


@pytest.mark.parametrize(
    ("spec", "knobs", "message"),
    [
        ("tagc", {}, "Unknown policy 'tagc'. Did you mean 'tacg'?"),
        ("tacg+klas", {}, "Did you mean 'klass'?"),
        ("tacg", {"k_xtra": 1}, "Unknown knob of `tacg` 'k_xtra'. Did you mean 'k_extra'?"),
        ("confidence", {"threshold": 2}, r"`threshold` must be float in \[0, 1\], got 2"),
        ("klass+confidence", {}, "`klass` does not wrap other policies"),
        ("tacg:llada/gsm9k", {}, "Did you mean 'tacg:llada/gsm8k'?"),
        ("tacg+tacg", {}, "Two knobs are named"),
    ],
)
def test_mistakes_get_the_nearest_match(spec: str, knobs: dict[str, float], message: str) -> None:
    with pytest.raises(TacgError, match=message.replace("?", r"\?")):
        get_policy(spec, **knobs)


def test_every_preset_is_a_policy_and_a_decode() -> None:
    assert len(presets()) >= 24
    for name in presets():
        policy, decode = resolve(name, {})
        assert policy.name == name.partition(":")[0].partition("+")[0]
        assert decode.gen_length >= 256
    policy, decode = resolve("tacg:llada/humaneval", {"gen_length": 64})
    assert policy.values()["support_lambda"] == 2.0
    assert policy.values()["tau_escape"] == 0.96
    assert (decode.gen_length, decode.block_length, decode.observe, decode.early_stop) == (64, 64, "sequence", False)


def test_settings_find_their_owner() -> None:
    policy, decode = resolve("tacg+klass", {"history": 3, "seed": 4, "suppress": [5]})
    assert (policy.values()["history"], decode.seed, decode.suppress) == (3, 4, (5,))
    with pytest.raises(TacgError, match=r"Unknown setting 'block_lenght'. Did you mean 'block_length'\?"):
        resolve("tacg", {"block_lenght": 3})


def test_a_stranger_can_register(llm: tacg.LLM) -> None:
    @dataclass(frozen=True)
    class Eager(Policy):
        """Commit everything."""

        def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
            return Decision(signals.eligible, rank=signals.confidence), state

    register("eager")(Eager)
    assert "eager" in policy_names()
    assert llm.generate("Hi", policy="eager", gen_length=40, block_length=10, early_stop=False).steps == 4
    with pytest.raises(TacgError, match="exists already"):
        register("klass")(Eager)


def test_entry_points_announce_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an installed package says in `tacg.policies` is listed without importing it and loaded on demand."""
    points = EntryPoints([
        EntryPoint("borrowed", "tacg.policies.confidence:Confidence", "tacg.policies"),
        EntryPoint("broken", "tacg.types:top", "tacg.policies"),
    ])  # fmt: skip
    monkeypatch.setattr("tacg.policies.registry.metadata.entry_points", lambda group: points.select(group=group))
    monkeypatch.setattr("tacg.policies.registry._registered", {})
    assert {"borrowed", "broken"} <= set(policy_names())
    assert get_policy("borrowed").knobs().keys() == {"threshold", "strict", "factor"}
    assert get_policy("confidence").name == "confidence"
    with pytest.raises(TacgError, match=r"must name a subclass of tacg\.Policy"):
        get_policy("broken")


def test_a_module_may_register_and_announce_the_same_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The example of the docs as an installed package; and one that cannot be imported beside it."""
    (tmp_path / "somebodys.py").write_text((Path(__file__).parents[2] / "examples/own_policy.py").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    points = EntryPoints([
        EntryPoint("bold", "somebodys:Bold", "tacg.policies"),
        EntryPoint("absent", "no_such_module:X", "tacg.policies"),
    ])  # fmt: skip
    monkeypatch.setattr("tacg.policies.registry.metadata.entry_points", lambda group: points.select(group=group))
    assert get_policy("tacg+bold", lead=0.4).label == "tacg+bold(lead=0.4)"
    with pytest.raises(TacgError, match="'absent' cannot be loaded from 'no_such_module:X'"):
        get_policy("absent")


def test_a_policy_may_not_shadow_the_decode() -> None:
    @dataclass(frozen=True)
    class Clash(Policy):
        """Has a knob of the same name as the decode."""

        seed: int = tacg.knob(7, "mine", low=0)

    with pytest.raises(TacgError, match="has a knob named `seed`, as has the decode"):
        resolve(Clash(), {})


def test_only_the_gates_own_signals_are_asked_for() -> None:
    assert get_policy("tacg").needs.names == {"reference", "readout"}
    assert get_policy("tacg", support="log_ratio").needs.names == {"reference"}
    assert get_policy("tacg", k_extra=0, preserve_margin=0.5).needs == Needs("margin")


def test_knobs_are_read_from_words() -> None:
    knobs = get_policy("tacg").knobs() | Decode().knobs()
    assert knobs["k_extra"].parse(" 3 ") == 3
    assert knobs["preserve_margin"].parse("none") is None
    assert knobs["early_stop"].parse("off") is False
    for name, word in (("k_extra", "two"), ("early_stop", "maybe"), ("beta", "2"), ("support", "x")):
        with pytest.raises(TacgError, match=f"`{name}` must be"):
            knobs[name].parse(word)


def test_eb_adds_up_entropies_but_the_largest() -> None:
    """0.1 + 0.2 <= 0.3 admits three; the fourth would add 0.3."""
    given = signals([0.5] * 5, entropy=[0.3, 0.1, 0.9, 0.2, 0.4])
    assert committed(get_policy("eb", bound=0.3), given) == [0, 1, 3]
    assert committed(get_policy("eb", bound=0.0), given) == [1], "the surest always"


def test_frechet_bounds_the_chance_that_all_are_right() -> None:
    """c = 0.9, 0.8, 0.7: bounds 0.9 - 0.1, 0.7 - 0.2, 0.4 - 0.3."""
    given = signals([0.7, 0.9, 0.8])
    assert committed(get_policy("frechet", delta=0.45), given) == [1, 2]
    assert committed(get_policy("frechet", delta=0.05), given) == [0, 1, 2]
    assert committed(get_policy("frechet", delta=0.85), given) == [1], "the surest always"


def test_saber_commits_above_its_average_and_takes_back_what_fell() -> None:
    policy = get_policy("saber", n=1)
    given = signals([0.9, 0.6, 0.3, 0.2])
    masked = torch.ones(1, 4, dtype=torch.bool)
    first, state = policy.decide(replace(given, masked=masked), policy.start(1, 4, torch.device("cpu")))
    assert first.base[0].tolist() == [True, False, False, False], "the average is 1 at first, so the surest alone"
    left = masked & ~first.base
    later = replace(signals([0.4, 0.95, 0.93, 0.2]), masked=left, eligible=left, first=torch.zeros_like(masked))
    second, _ = policy.decide(later, state)
    assert second.base[0].tolist() == [False, True, True, False], "above 0.9"
    assert second.remask is not None
    assert second.remask[0].tolist() == [True, False, False, False], "one of two commits, and it fell by half"


def test_saber_takes_back_new_choices_too_but_nothing_once_all_is_written() -> None:
    """As its authors' code: of two choices the one that is least sure is not written, and counts in the average."""
    policy = get_policy("saber", n=2)
    masked = torch.ones(1, 4, dtype=torch.bool)
    given = replace(signals([0.9, 0.6, 0.3, 0.2]), masked=masked)
    first, state = policy.decide(given, policy.start(1, 4, torch.device("cpu")))
    assert first.base[0].tolist() == [True, False, False, False]
    left = masked & ~first.base
    again = replace(signals([0.9, 0.76, 0.74, 0.2]), masked=left, eligible=left, first=torch.zeros_like(masked))
    _, state = policy.decide(again, state)
    assert state["at_commit"][0].tolist() == pytest.approx([0.9, 0.76, 0.74, 0.0]), "the last choice counts, not both"
    last = torch.tensor([[False, False, False, True]])
    end = replace(signals([0.1, 0.76, 0.74, 0.2]), masked=last, eligible=last, first=torch.zeros_like(masked))
    final, _ = policy.decide(end, state)
    assert final.base[0].tolist() == [False, False, False, True]
    assert final.remask is not None
    assert not final.remask.any()


def test_d3llm_opens_the_next_block_early() -> None:
    """Blocks of two; the first position of the active one is sure: half of it is written, which opens another."""
    given = replace(
        signals([0.5] * 6, entropy=[0.1, 2.0, 2.0, 2.0, 2.0, 2.0]), masked=torch.ones(1, 6, dtype=torch.bool),
        grid=torch.tensor([[0, 0, 1, 1, 2, 2]]), current=torch.tensor([0]), opened=torch.tensor([1]),
        eligible=torch.tensor([[True, True, False, False, False, False]]), length=torch.tensor([6]),
    )  # fmt: skip
    for add, opened in ((0.5, 2), (0.6, 1)):
        decision, _ = get_policy("d3llm", add=add).decide(given, {})
        assert decision.base[0].tolist() == [True, *[False] * 5]
        assert decision.open is not None
        assert decision.open.tolist() == [opened]


def test_prophet_ends_when_the_gap_is_wide_enough_for_the_hour() -> None:
    policy = get_policy("prophet+schedule", region_start=0, region_length=6)
    state = policy.start(1, 6, torch.device("cpu"))
    # The step under way counts: with five of six left, a third of the steps is over when this one is.
    hours = ((6, 7.4, False), (6, 7.5, True), (5, 5.0, True), (5, 4.9, False), (4, 4.9, False), (2, 2.5, True))
    for left, gap, ends in hours:
        masked = torch.arange(6)[None] >= 6 - left
        given = replace(signals([0.5] * 6, gap=[gap] * 6), masked=masked, length=torch.tensor([6]))
        decision, _ = policy.decide(given, state)
        assert decision.finish is not None
        assert decision.finish.tolist() == [ends], (left, gap)


def test_prophet_watches_its_region_only() -> None:
    policy = get_policy("prophet+schedule", region_start=3, region_length=2)
    state = policy.start(1, 6, torch.device("cpu"))
    for gap, ends in (([9.0, 9, 9, 7, 7, 9], False), ([0.0, 0, 0, 8, 7, 0], True)):
        given = replace(
            signals([0.5] * 6, gap=gap), masked=torch.ones(1, 6, dtype=torch.bool), length=torch.tensor([6])
        )
        decision, _ = policy.decide(given, state)
        assert decision.finish is not None
        assert decision.finish.tolist() == [ends]


def test_prophet_without_a_region_is_its_base_policy(llm: tacg.LLM) -> None:
    """As the authors': nothing is forced, so there is nothing to watch. A random model has gaps beyond any bar."""
    settings = {"gen_length": 24, "block_length": 8, "early_stop": False}
    bars = {"early": 0.0, "middle": 0.0, "late": 0.0}
    plain = llm.generate("Hello", "confidence", **settings)
    assert llm.generate("Hello", "prophet", **settings, **bars).commits == plain.commits
    ended = llm.generate("Hello", "prophet", **settings, **bars, region_start=20)
    assert {each.reason for each in ended.commits} >= {"finish"}
    assert ended.steps == 1


def test_lookum_looks_ahead_unless_something_is_sure() -> None:
    policy = get_policy("lookum", paths=2, k=1, spread=0.0)
    extra = {"samples": torch.full((1, 3, 1), 7), "draws": torch.full((1, 3, 1), 0.5)}
    looks, _ = policy.decide(replace(signals([0.3, 0.8, 0.5], entropy=[0.0] * 3), **extra), {})
    assert not looks.base.any()
    assert looks.branches is not None
    assert looks.branches.count.tolist() == [2]
    assert looks.branches.commit[0].tolist() == [[False, True, False]] * 2
    assert looks.branches.tokens[0, :, 1].tolist() == [0, 7], "the greedy path, and one that samples"
    sure, _ = policy.decide(replace(signals([0.3, 0.95, 0.5], entropy=[0.0] * 3), **extra), {})
    assert sure.base[0].tolist() == [False, True, False]
    assert sure.branches is not None
    assert sure.branches.count.tolist() == [0]
    seen = torch.tensor([[[False, True, True], [False, True, True]]])
    ahead = replace(signals([0.0]), observed=seen, measured={"entropy": torch.tensor([[[0.0, 2, 2], [0.0, 1, 2]]])})
    assert policy.choose(ahead, {}).tolist() == [1], "the path that leaves less doubt"


def test_credit_goes_to_tokens_that_stay_on_top() -> None:
    """Token 3 leads for two steps, then token 4 by a little: 3 is proposed once more, on credit."""
    script = torch.zeros(4, 2, 6)
    script[:2, :, 3], script[2:, :, 4], script[2:, :, 3] = 3.0, 2.0, 1.9
    trajectories, needs = Trajectories(1, 1), get_policy("credit").needs
    proposed = [int(scan(frame[1:], torch.arange(1), trajectories, needs)["token"]) for frame in script]
    assert proposed == [3, 3, 3, 4], "credit fades as it is not renewed"


def looking(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([rows])


def test_attention_commits_what_is_looked_at_and_sure() -> None:
    """Columns add up to 0.9, 0.6, 0.8, 0.2: position 1 is sure, but 2 is unsure and looked at more."""
    attention = looking([[0.3, 0.2, 0.2, 0.1], [0.2, 0.2, 0.2, 0.0], [0.2, 0.1, 0.2, 0.1], [0.2, 0.1, 0.2, 0.0]])
    given = replace(signals([0.95, 0.95, 0.5, 0.95]), attention=attention)
    assert committed(get_policy("attention"), given) == [0]
    assert committed(get_policy("attention", threshold=0.5), given) == [0, 1, 2, 3], "nothing is unsure"
    assert committed(get_policy("attention", threshold=0.99), given) == [], "the engine takes the most influential"
    alone, _ = get_policy("attention", sequential=True, threshold=0.5).decide(given, {})
    assert not alone.base.any()
    assert alone.rank.argmax(dim=1).tolist() == [0]


def test_dapd_commits_what_does_not_look_at_each_other() -> None:
    """A path 0 - 1 - 2 - 3 - 4: 1 has the most attention, so 0 and 2 wait; then 3 outranks 4."""
    attention = torch.zeros(1, 5, 5)
    for i, j, weight in ((0, 1, 0.4), (1, 2, 0.3), (2, 3, 0.2), (3, 4, 0.1)):
        attention[0, i, j] = attention[0, j, i] = weight
    block = {"grid": torch.zeros(1, 5, dtype=torch.int64), "current": torch.tensor([0]), "length": torch.tensor([5])}
    given = replace(signals([0.5] * 5), attention=attention, **block)
    assert committed(get_policy("dapd"), given) == [1, 3]
    assert committed(get_policy("dapd", edge=0.15), given) == [1, 3, 4], "a weak edge is none"
    surer = replace(given, confidence=torch.tensor([[0.5, 0.1, 0.5, 0.5, 0.5]]))
    assert committed(get_policy("dapd"), surer) == [0, 2, 4], "confidence weighs in the order"
    left = torch.tensor([[True, True, False, False, False]])
    late = replace(given, confidence=torch.full((1, 5), 0.95), eligible=left)
    assert committed(get_policy("dapd"), late) == [0, 1], "less than half is masked: both are sure"


def test_apd_commits_up_to_the_first_disagreement() -> None:
    """Masks at 1, 2, 4, 5, 6; what is committed at 3 does not count."""
    masks = torch.tensor([[False, True, True, False, True, True, True]])
    proposed = torch.tensor([[-1, 7, 8, -1, 9, 5, 5]])
    given = replace(signals([0.5] * 7), eligible=masks, token=proposed)

    def ready(verified: list[int], **knobs: int) -> list[int]:
        target = torch.tensor([[-1, *verified[:2], -1, *verified[2:]]])
        return committed(get_policy("apd", **knobs), replace(given, verified=target))

    assert ready([7, 8, 9, 0, 5]) == [1, 2, 4], "what comes after a disagreement is not trusted"
    assert ready([0, 8, 9, 5, 5]) == [1], "the first always"
    assert ready([7, 8, 9, 5, 5]) == [1, 2, 4, 5, 6]
    assert ready([7, 8, 9, 5, 5], lookahead=4) == [1, 2, 4], "positions 1 to 4"


@pytest.mark.parametrize("length", [1, 7, 32, 60])
def test_the_independent_set_is_the_greedy_one(length: int) -> None:
    """Exact up to two positions a round; beyond that it is part of it."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        joined = torch.rand(1, length, length, generator=generator) < 0.02 * (1 + seed % 10)
        joined = (joined | joined.mT) & ~torch.eye(length, dtype=torch.bool)
        rank = torch.randint(0, 9, (1, length), generator=generator).float()  # with ties
        among = torch.rand(1, length, generator=generator) < 0.8
        greedy: list[int] = []
        for place in sorted(range(length), key=lambda i: (-float(rank[0, i]), i)):
            if among[0, place] and not any(joined[0, place, other] for other in greedy):
                greedy.append(place)
        found = independent_set(joined, rank, among)[0].nonzero()[:, 0].tolist()
        assert found == sorted(greedy), "chains of random graphs are short, so that 60 positions are done as well"


def test_a_chain_that_is_too_long_waits() -> None:
    """100 positions in a row, each outranked by the one before: two are settled per round."""
    place = torch.arange(100)
    joined = ((place[:, None] - place).abs() == 1)[None]
    found = independent_set(joined, -place.float()[None], torch.ones(1, 100, dtype=torch.bool))
    assert found[0].nonzero()[:, 0].tolist() == list(range(0, 2 * ROUNDS, 2))
