"""Forwards that leave out a part of the suffix, and forwards with a shadow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import tacg
from tacg.cache import Cache
from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request, resolve
from tacg.errors import TacgError
from tacg.knobs import knob
from tacg.models.base import Span
from tacg.models.tiny import write_checkpoint
from tacg.policies import Policy, State, get_policy
from tacg.types import Decision, Signals, top
from tests.cache.test_cache import PROMPTS, Spy
from tests.worlds import MASK, ReactiveDenoiser

SETTINGS: dict[str, Any] = {"gen_length": 80, "block_length": 32, "early_stop": False}
STREAMING: dict[str, Any] = {"threshold": 0.5, "suffix": 9}
WINO: dict[str, Any] = {"threshold": 0.3, "keep": 0.5}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tacg.LLM]:
    families = ("llada", "dream", "llada2")
    return {
        family: tacg.load(write_checkpoint(tmp_path_factory.mktemp(family), family=family, seed=2, liveliness=4.0))
        for family in families
    }


def story(output: tacg.Output) -> tuple[Any, ...]:
    """All but confidences."""
    return [(c.step, c.position, c.token, c.reason) for c in output.commits], output.tokens, output.positions


@pytest.mark.parametrize(
    ("family", "policy", "settings"),
    [
        *(("llada", "streaming", {**STREAMING, "cache": cache}) for cache in ("none", "prefix", "dual")),
        ("dream", "tacg+streaming", {**STREAMING, "cache": "prefix"}),
        ("llada", "tacg+streaming", {**STREAMING, "observe": "sequence"}),
        ("llada2", "streaming", STREAMING),
        ("llada", "wino", WINO),
        ("llada", "tacg+wino", {**WINO, "observe": "sequence", "memory": "hidden"}),
        ("llada2", "wino", WINO),
    ],
)
def test_rows_in_a_batch_decode_as_alone(
    models: dict[str, tacg.LLM], family: str, policy: str, settings: dict[str, Any]
) -> None:
    """In one batch with rows of other lengths, and with a policy that has neither gap nor shadow."""
    model = models[family].model
    rows = [
        Request(tuple(prompt), *resolve(policy, {**SETTINGS, **settings, "gen_length": 80 - 9 * number}))
        for number, prompt in enumerate(PROMPTS[:4])
    ]
    plain = Request(tuple(PROMPTS[4]), *resolve("tacg", SETTINGS))
    together = Engine(model, max_rows=4).generate([*rows, plain])
    alone = [Engine(model).generate([row])[0] for row in [*rows, plain]]
    assert list(map(story, together)) == list(map(story, alone))
    if family != "llada2":  # whose experts round the last bit of a shadow's confidence by what else they are given
        assert together == alone
    kinds = {commit.reason for output in together[:-1] for commit in output.commits}
    assert "base" in kinds
    assert ("remask" in kinds) == ("wino" in policy)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_the_suffix_is_left_out_of_every_forward(models: dict[str, tacg.LLM], family: str, cache: str) -> None:
    llm, prompt = models[family], PROMPTS[1]
    spy = Spy(llm.model)
    output = tacg.LLM(spy, llm.tokenizer).generate(prompt, "streaming", cache=cache, **SETTINGS, **STREAMING)
    spans = [span for spans, _ in spy.calls for span in spans]
    start, end = len(prompt), len(prompt) + 80
    gaps = {(start + 32 + 9, end - 1), (start + 64 + 9, end - 1), (0, 0)}
    assert {span.gap for span in spans if span.stop == end} == gaps
    assert output.positions == sum(len(span) for span in spans)
    firsts = [span for span in spans if span.start == 0]
    assert {len(span) for span in firsts} == {start + 32 + 10, start + 64 + 10, start + 80}
    assert (len(firsts) == 3) == (cache != "none"), "a cache begins anew with each block"


def test_a_cache_with_a_gap_holds_what_was_computed(models: dict[str, tacg.LLM]) -> None:
    """The block computed again over its cache, before and behind it, gives what the whole forward gave."""
    model = models["llada"].model
    tokens = torch.randint(6, 60, (40,), generator=torch.Generator().manual_seed(3))
    kept = torch.tensor([*range(30), 39])
    cache = Cache(40)
    with torch.no_grad():
        whole = model(tokens[kept], [Span(0, 40, 31, cache, (30, 39))], torch.arange(16, 24))
        behind = model(tokens[kept[16:]], [Span(16, 40, 31, cache, (30, 39))], torch.arange(8))
        alone = model(tokens[16:24], [Span(16, 24, 31, cache)], torch.arange(8))
    assert float((whole - behind).abs().max()) <= 1e-4
    assert float((whole - alone).abs().max()) <= 1e-4


def test_a_shadow_over_the_block_cache_is_exact(models: dict[str, tacg.LLM]) -> None:
    llm = models["llada2"]
    cached, plain = (llm.generate(PROMPTS[2], "wino", cache=cache, **SETTINGS, **WINO) for cache in ("block", "none"))
    assert story(cached)[:2] == story(plain)[:2]
    assert cached.positions < plain.positions


def test_a_shadow_is_paid_for() -> None:
    request = Request((3, 4), get_policy("wino"), Decode(gen_length=20, block_length=8, early_stop=False))
    model = ReactiveDenoiser(1)
    (output,) = Engine(model).generate([request])
    assert {len(row) for row in model.rows_seen} == {22 + 8, 22 + 4}
    assert output.positions == sum(map(len, model.rows_seen))


def test_what_is_given_is_never_left_out() -> None:
    """A canvas with a word near its end: the gap ends there, so that the model sees it."""
    canvas = tuple(7 if place in (15, 17) else MASK for place in range(20))
    request = Request((3,), get_policy("streaming", suffix=2), Decode(gen_length=20, block_length=4), canvas)
    model = ReactiveDenoiser(1, eos_ids=())
    Engine(model).generate([request])
    assert model.rows_seen[0] == (3, *[MASK] * 6, 7, MASK, 7, MASK, MASK)
    assert all(row[-5:].count(7) >= 2 for row in model.rows_seen[:-8])


@pytest.mark.parametrize(
    ("family", "policy", "settings", "words"),
    [
        ("llada", "wino", {"cache": "prefix"}, "`cache` must be auto or none for a policy that rechecks"),
        ("llada", "tacg+wino", {"cache": "dual"}, "`cache` must be auto or none for a policy that rechecks"),
        ("dream", "wino", {}, "predicts a token one position before: use a model without shifted logits"),
        (
            "llada",
            "prophet+streaming",
            {"region_start": 4},
            "leaves out most of the suffix cannot look ahead",
        ),
        ("llada2", "streaming", {"cache": "prefix"}, "auto, none or block for the block-causal"),
    ],
)
def test_what_makes_no_sense_is_refused(
    models: dict[str, tacg.LLM], family: str, policy: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(TacgError, match=words):
        models[family].generate([7, 8], policy, **SETTINGS, **settings)


@dataclass(frozen=True)
class Cropped(Policy):
    """Commits the surest, and looks no further than the first `crop` positions of a block while they are masked."""

    name = "cropped"
    crop: int = knob(3, "positions that are looked at", low=1)

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        assert signals.grid is not None
        assert signals.current is not None
        before = (signals.grid < signals.current[:, None]).sum(dim=1)
        near = signals.eligible & (torch.arange(signals.grid.shape[1]) < (before + self.crop)[:, None])
        near = torch.where(near.any(dim=1, keepdim=True), near, signals.eligible)
        return Decision(top(signals.confidence, near, 1), signals.confidence, reach=before + self.crop), state


@pytest.mark.parametrize("observe", ["block", "sequence"])
def test_a_forward_ends_where_a_policy_says(observe: str) -> None:
    """The first forward of a block and those behind the crop see everything; a budget is kept all the same."""
    decode = Decode(gen_length=16, block_length=8, early_stop=False, observe=observe)
    model = ReactiveDenoiser(1)
    (output,) = Engine(model).generate([Request((3, 4), Cropped(), decode)])
    sizes = [18, 5, 5, *[18] * 5]
    assert [len(row) for row in model.rows_seen] == [*sizes, 18, 13, 13, *[18] * 5]
    assert output.positions == sum(map(len, model.rows_seen))
    assert {c.position for c in output.commits if c.step <= 3} == {0, 1, 2}
    for steps in (2, 3, 5, 11):
        requests = [Request((3, place), Cropped(crop=place), decode.replace(steps=steps)) for place in (2, 5, 7)]
        together = Engine(model).generate(requests)
        assert together == [Engine(model).generate([request])[0] for request in requests]
        assert all(output.steps <= steps and len(output.tokens) == 16 for output in together)


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_what_is_cropped_is_not_computed(models: dict[str, tacg.LLM], cache: str) -> None:
    llm, spy = models["llada"], Spy(models["llada"].model)
    settings = {"gen_length": 16, "block_length": 8, "early_stop": False, "cache": cache}
    output = tacg.LLM(spy, llm.tokenizer).generate(PROMPTS[0], Cropped(), **settings)
    stops = [span.stop for spans, _ in spy.calls for span in spans]
    assert stops[1:3] == [8, 8]
    assert stops[9:11] == [16, 16]
    assert output.positions == sum(len(span) for spans, _ in spy.calls for span in spans)
