"""A step that raises: nothing is forgotten, and every row goes on as if nothing had been, or is lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tacg
from tacg.engine.batch import Batch
from tacg.engine.events import Finished
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
