"""A step that raises: every row continues as if nothing had happened, or is reported as lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tacg
from tacg.engine.batch import Batch
from tacg.engine.events import Finished, Started
from tacg.engine.footprint import footprint
from tacg.engine.loop import Engine
from tacg.engine.request import Request, resolve

KINDS: list[dict[str, Any]] = [
    {"gen_length": 24, "block_length": 8, "cache": cache, "temperature": heat, "seed": 3}
    for cache in ("none", "prefix", "dual")
    for heat in (0.0, 0.8)
]


class Sometimes:
    """The tiny model; every third call raises after it was computed, so that caches have been written."""

    def __init__(self, llm: tacg.LLM) -> None:
        self.model, self.spec, self.device, self.calls = llm.model, llm.model.spec, llm.model.device, 0

    def __call__(self, *given: Any) -> Any:
        self.calls += 1
        logits = self.model(*given)
        if self.calls % 3 == 0:
            raise torch.OutOfMemoryError("no room")
        return logits


def asked(llm: tacg.LLM) -> list[Request]:
    prompts = ["hello", "a longer prompt", "12 + 30"]
    return [
        Request(tuple(llm.encode(prompt, False)), *resolve("tacg+klass", settings))
        for prompt in prompts
        for settings in KINDS
    ]


def finish(engine: Engine, found: dict[int, tuple[int, ...]], lost: set[int]) -> int:
    """Step until all rows are done or lost; how many steps raised."""
    raised = 0
    for _ in range(2000):
        if not engine.busy and not engine._untold:
            return raised
        try:
            events = engine.step(detail=False)
        except torch.OutOfMemoryError:
            raised += 1
            lost |= engine.lost
            engine.lost.clear()
            continue
        done = {event.row: event.output.tokens for event in events if isinstance(event, Finished)}
        assert not done.keys() & (found.keys() | lost), "told once"
        found |= done
    raise AssertionError("it does not end")


def test_a_forward_that_raises_can_be_had_again(llm: tacg.LLM) -> None:
    requests, found, lost = asked(llm), dict[int, tuple[int, ...]](), set[int]()
    alone = [Engine(llm.model, 1).generate([each])[0].tokens for each in requests]
    engine = Engine(Sometimes(llm), 8)  # type: ignore[arg-type]
    for each in requests:
        engine.submit(each)
    assert finish(engine, found, lost)
    assert not lost
    assert [found[number] for number in range(len(requests))] == alone


@pytest.mark.parametrize("where", ["join", "scan", "decide", "commit", "read", "leave"])
def test_a_batch_that_raises_loses_its_rows_alone(llm: tacg.LLM, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests, found, lost = asked(llm), dict[int, tuple[int, ...]](), set[int]()
    alone = [Engine(llm.model, 1).generate([each])[0].tokens for each in requests]
    engine, right, calls = Engine(llm.model, 8), getattr(Batch, where), 0

    def fails(batch: Batch, *given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        made = right(batch, *given, **more)
        if calls == 5:
            raise torch.OutOfMemoryError("no room")
        return made

    monkeypatch.setattr(Batch, where, fails)
    for each in requests:
        engine.submit(each)
    assert finish(engine, found, lost) == 1
    assert 0 < len(lost) < len(requests)
    assert found.keys() | lost == set(range(len(requests)))
    assert all(tokens == alone[number] for number, tokens in found.items())


class Narrow:
    """The tiny model, with memory for so many rows."""

    def __init__(self, llm: tacg.LLM, rows: int) -> None:
        self.model, self.spec, self.device, self.rows = llm.model, llm.model.spec, llm.model.device, rows
        self.most = self.short = 0

    def __call__(self, tokens: Any, spans: Any, select: Any) -> Any:
        if len(spans) > self.rows:
            self.short += 1
            raise torch.OutOfMemoryError("no room")
        self.most = max(self.most, len(spans))
        return self.model(tokens, spans, select)


def test_a_decode_without_enough_memory_goes_on_with_fewer_rows(llm: tacg.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = asked(llm)
    alone = [Engine(llm.model, 1).generate([each])[0].tokens for each in requests]
    small = Narrow(llm, 3)
    found = Engine(small, 6).generate(requests)  # type: ignore[arg-type]
    assert [each.tokens for each in found] == alone
    assert (small.most, small.short) == (3, 3), "one row fewer at a time, and none of it for nothing"

    plain, calls = Batch.decide, iter(range(10**6))

    def decide(batch: Batch, signals: Any) -> Any:
        if next(calls) == 4:
            raise torch.OutOfMemoryError("in the middle of a step, so that its rows are torn")
        return plain(batch, signals)

    monkeypatch.setattr(Batch, "decide", decide)
    started = [event.row for event in Engine(llm.model, 6).stream(requests, detail=False) if isinstance(event, Started)]
    assert sorted(started) == list(range(len(requests))), "told once"
    calls = iter(range(10**6))
    assert [each.tokens for each in Engine(llm.model, 6).generate(requests)] == alone

    with pytest.raises(torch.OutOfMemoryError):
        Engine(Narrow(llm, 0), 6).generate(requests)  # type: ignore[arg-type]


def test_rows_are_admitted_while_their_memory_fits(llm: tacg.LLM) -> None:
    requests = asked(llm)[:6]
    sizes = [footprint(each, llm.model) for each in requests]
    vocabulary, (_, _, kept) = llm.model.spec.vocab_size, (sizes[0].cache, sizes[1].cache, sizes[2].cache)
    assert sizes[0] == (0, 8 * 2 * 4 * vocabulary, 8 * 4 * vocabulary), "a reference, a posterior, logits; no cache"
    network: Any = llm.model
    held = Engine(llm.model, 1)
    held.submit(requests[2])
    held.step()
    (batch,) = held._batches.values()
    assert kept == sum(layer.nbytes for layer in batch.store.layers), "what the cache takes"
    assert kept == network.kept_bytes * (len(requests[2].prompt) + 24)

    alike = [requests[0]] * 6
    model = Narrow(llm, 99)
    model.table = network.table  # type: ignore[attr-defined]
    found = Engine(model, 6, memory=3 * sizes[0].total).generate(alike)  # type: ignore[arg-type]
    assert model.most == 2, "a third one would double the slots"
    assert len({each.tokens for each in found}) == 1
    assert Engine(model, 6, memory=1).generate(alike)[5].tokens == found[0].tokens, "one at a time, if need be"  # type: ignore[arg-type]
