"""Everything that reads commits handles policies that take tokens back, and canvases with holes."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

import tacg
from tacg.cli.chat import settled
from tacg.cli.watch import CanvasView
from tacg.engine.events import Event
from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request
from tacg.experiments.diagnose import collect
from tacg.experiments.evaluate import graded
from tacg.experiments.grid import Sample
from tacg.tasks import get_task
from tests.revising import Reviser
from tests.serve.conftest import running

SETTINGS: dict[str, Any] = {"gen_length": 36, "block_length": 12, "early_stop": False}
REVISERS = [Reviser(), Reviser(pace=4, remasks=3), Reviser(remasks=0, edits=True), Reviser(pace=2, edits=True)]


def steps_of(events: Any) -> list[tacg.Step]:
    return [event for event in events if isinstance(event, tacg.Step)]


@pytest.mark.parametrize("observe", ["block", "sequence"])
@pytest.mark.parametrize("policy", REVISERS, ids=lambda each: each.label)
def test_what_is_settled_stays(llm: tacg.LLM, policy: Reviser, observe: str) -> None:
    """The canvas is what the commits say, and nothing to the left of `settled` changes; what is said early stands."""
    events: list[Event] = list(llm.stream("Hello", policy, **SETTINGS, observe=observe))
    started, *steps, finished = events
    assert isinstance(started, tacg.Started)
    assert isinstance(finished, tacg.Finished)
    canvas, known, said = list(started.canvas), 0, ""
    for step in steps_of(steps):
        now = {commit.position: commit.token for commit in step.committed}
        assert min(now) >= known, "a settled position was written"
        canvas = [now.get(place, token) for place, token in enumerate(canvas)]
        assert step.canvas == tuple(canvas)
        assert step.settled >= known
        known = step.settled
        assert settled(llm, step).startswith(said)
        said = settled(llm, step)
    assert known == len(canvas)
    assert finished.output.tokens == tuple(canvas)
    assert finished.output.text == said
    happened = {commit.reason for commit in finished.output.commits}
    assert ("edit" in happened, "remask" in happened) == (policy.edits, policy.remasks > 0)


@pytest.mark.parametrize("stop", [[], ["e"]], ids=["to the end", "stop"])
def test_the_server_takes_nothing_back(llm: tacg.LLM, monkeypatch: pytest.MonkeyPatch, stop: list[str]) -> None:
    monkeypatch.setitem(tacg.policies.registry._registered, "reviser", Reviser)
    for knobs in ({"remasks": 2}, {"edits": True}):
        extra = {"policy": "reviser", **knobs, "block_length": 12, "early_stop": False}
        alone = llm.generate("Hello", "reviser", chat=False, **SETTINGS | knobs).text
        asked: Any = {"model": "tiny", "prompt": "Hello", "max_tokens": 36, "stop": stop, "logprobs": 0}
        with running(llm) as server:
            whole = server.client.completions.create(**asked, extra_body=extra).choices[0]
            stream = server.client.completions.create(**asked, extra_body=extra, stream=True)
            pieces = [chunk.choices[0] for chunk in stream]
        assert whole.text == (alone.partition(stop[0])[0] if stop else alone)
        assert "".join(piece.text for piece in pieces) == whole.text
        assert sum(bool(piece.text) for piece in pieces) > 1, "it came in pieces"
        told = [token for piece in pieces if piece.logprobs for token in piece.logprobs.tokens]
        assert told == whole.logprobs.tokens


def test_pace_is_what_a_step_gains(llm: tacg.LLM) -> None:
    task = get_task("pocket-math")
    (problem,) = task.problems("test", 1, 0)
    for policy in REVISERS:
        output = llm.generate(problem.asked, policy, **SETTINGS)
        steps = steps_of(llm.stream(problem.asked, policy, **SETTINGS))
        masks = [36, *(step.canvas.count(llm.model.spec.mask_id) for step in steps)]
        assert graded(task, problem, output).pace == tuple(before - after for before, after in pairwise(masks))


def test_diagnosis_looks_at_masks_only(llm: tacg.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that looks at its own tokens again makes no samples of them."""
    monkeypatch.setitem(tacg.policies.registry._registered, "reviser", Reviser)
    task = get_task("pocket-math")
    found = collect(llm, task, "reviser", Sample(split="test", n=1, seed=0, batch_size=1))
    (problem,) = task.problems("test", 1, 0)
    masks = list[int]()
    canvas: tuple[int, ...] = ()
    for event in llm.stream(problem.asked, "reviser", **task.decode, early_stop=False):
        if isinstance(event, tacg.Step):
            masks += [each.position for each in event.proposals if canvas[each.position] == llm.model.spec.mask_id]
        if isinstance(event, tacg.Finished):
            ends = [at for at, token in enumerate(event.output.tokens) if token in llm.model.spec.eos_ids]
        else:
            canvas = event.canvas
    assert len(found) == sum(at < min(ends, default=len(canvas)) for at in masks) > 0


def drawn(view: CanvasView, step: tacg.Step) -> tuple[dict[str, str], str]:
    """A picture: styles of the canvas' letters, and all of its text."""
    group = view.draw(step)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(group)
    panel = group.renderables[0]
    spans = {str(panel.renderable.plain[span.start : span.end]): str(span.style) for span in panel.renderable.spans}
    return spans, console.export_text()


def test_the_terminal_shows_what_is_taken_back_and_what_was_given(llm: tacg.LLM) -> None:
    mask, given = llm.model.spec.mask_id, llm.tokenizer.encode("Q")[-1]
    words = [llm.tokenizer.encode(letter)[-1] for letter in "ABC"]
    view = CanvasView(llm, "title")
    view.begin(tacg.Started(0, (5,), 3, (given, mask, mask)))
    write = [tacg.Commit(1, words[0], 1, "base", 0.9), tacg.Commit(2, words[1], 1, "finish", 0.9)]
    styles, text = drawn(view, tacg.Step(0, 1, 0, (given, *words[:2]), tuple(write), ()))
    assert styles == {"Q": "none", "A": "green reverse", "B": "cyan reverse"}
    assert "2/2 committed" in text
    assert "given" in text
    assert "masked again" not in text, "the legend has what has happened"
    back = [tacg.Commit(1, mask, 2, "remask", 0.1), tacg.Commit(2, words[2], 2, "edit", 0.8)]
    ideas = (tacg.Proposal(1, words[1], 0.1), tacg.Proposal(2, words[2], 0.8))
    styles, text = drawn(view, tacg.Step(0, 2, 0, (given, mask, words[2]), tuple(back), ideas))
    assert styles == {"Q": "none", "B": "dim italic red underline reverse", "C": "bold bright_blue reverse"}
    assert "1/2 committed" in text
    assert "masked again" in text
    styles, _ = drawn(view, tacg.Step(0, 3, 0, (given, mask, words[2]), (), ()))
    assert styles["·"] == "dim red underline"


def test_a_canvas_with_holes_begins_with_what_was_given(llm: tacg.LLM) -> None:
    mask = llm.model.spec.mask_id
    canvas = tuple(5 + place % 7 if place % 3 else mask for place in range(12))
    request = Request((5, 6), Reviser(), Decode(gen_length=12, block_length=4), canvas)
    started, *steps, _ = Engine(llm.model).stream([request])
    assert isinstance(started, tacg.Started)
    assert started.canvas == canvas
    for step in steps_of(steps):
        assert all(now == then for now, then in zip(step.canvas, canvas, strict=True) if then != mask)
    plain, *_ = Engine(llm.model).stream([Request((5, 6), Reviser(), Decode(gen_length=4))])
    assert isinstance(plain, tacg.Started)
    assert plain.canvas == (mask,) * 4
