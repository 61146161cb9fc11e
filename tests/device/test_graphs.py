"""Steps as CUDA graphs, as far as a simulated device can tell: the same decodes from tensors that stay in place."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import tacg
from tacg.bench.simulated_device import SimulatedDevice
from tacg.engine.graphs import Captured, Graphs, engine_with_graphs, inputs_of
from tacg.engine.loop import Engine
from tacg.engine.request import Request, resolve
from tacg.models.base import Denoiser
from tacg.models.tiny import random_model
from tacg.policies.state import stack
from tacg.types import Output


class Rehearsed(Graphs):
    """Instead of a replay, the captured step runs again, on the tensors of its capture.

    A graph would not see other tensors, so those of later plans are spoiled once their content was copied.
    """

    def __init__(self, model: Denoiser, device: SimulatedDevice) -> None:
        super().__init__(model, lambda step: device.phase("graph")(step))
        self.places: dict[int, list[int]] = {}

    def _for(self, batch: Any, plan: Any) -> Captured | None:
        captured = super()._for(batch, plan)
        if captured is not None:
            if plan is not captured.plan:
                plan.pack.fill_(1 << 40)
                plan.offset.fill_(1 << 40)
                for rows in plan.spans.known.values():
                    rows.position.fill_(1 << 40)
                    rows.cos.fill_(torch.nan)
            tensors = [*captured.tables, batch.canvas, *batch.boards, batch.trajectories.seen, *batch.store.layers]
            now = [each.data_ptr() for each in tensors]
            assert self.places.setdefault(id(captured), now) == now, "everything stays in place"
        return captured


SETTINGS = {"block_length": 16, "early_stop": False}


@functools.cache
def model(name: str) -> Denoiser:
    with SimulatedDevice():
        if name == "pocket":
            return tacg.load("pocket", device="cuda").model
        return random_model(name, liveliness=4.0).to("cuda", torch.bfloat16)


def requests(name: str, policy: str, settings: dict[str, Any]) -> list[Request]:
    """Seven rows that differ in prompt, length, seed and, every second one, in a threshold."""
    made = []
    for i in range(7):
        chosen, decode = resolve(policy, {**SETTINGS, "seed": i, **settings, "gen_length": 32 + 16 * (i % 3)})
        if i % 2 and "threshold" in chosen.knobs():
            chosen = chosen.replace(threshold=0.98)
        prompt = tuple(6 + (3 * i + place) % 90 for place in range(9 + 5 * (i % 4)))
        made.append(Request(prompt, chosen, decode))
    return made


def decoded(name: str, asked: list[Request], *, graphs: bool) -> tuple[list[Output], Rehearsed | None, SimulatedDevice]:
    chosen = model(name)
    with SimulatedDevice() as device:
        engine = Engine(chosen, max_rows=4)
        rehearsed = engine.graphs = Rehearsed(engine.model, device) if graphs else None
        return engine.generate(asked), rehearsed, device


CASES: list[tuple[str, str, dict[str, Any]]] = [
    *(("pocket", policy, {}) for policy in ("confidence", "tacg+klass", "joint", "credit", "d3llm", "prophet", "wino")),
    ("pocket", "tacg", {"temperature": 0.7}),
    ("pocket", "tacg", {"cache": "dual", "threshold": 1.0}),
    ("pocket", "tacg", {"observe": "sequence"}),
    ("pocket", "schedule", {"rank_by": "random", "steps": 24}),
    ("llada2", "tacg", {"block_length": 32}),
]


@pytest.mark.parametrize(("name", "policy", "settings"), CASES, ids=str)
def test_decodes_are_the_same(name: str, policy: str, settings: dict[str, Any]) -> None:
    """Rows join, leave and enter blocks; a captured step neither reads nor uploads."""
    asked = requests(name, policy, settings)
    expected, _, _ = decoded(name, asked, graphs=False)
    found, graphs, device = decoded(name, asked, graphs=True)
    assert found == expected
    assert graphs is not None
    assert graphs.captures <= graphs.replays
    assert graphs.replays > sum(output.steps for output in found) / len(found) / 4, "most steps are replays"
    assert device.tally.count("kernel", phase="graph") > 0
    assert device.tally.count("read", phase="graph") == device.tally.count("upload", phase="graph") == 0


@pytest.mark.parametrize("policy", ["lookum", "attention", "apd"])
def test_steps_that_a_graph_cannot_hold_run_as_usual(policy: str) -> None:
    with SimulatedDevice() as device:
        llm = tacg.load("pocket", device="cuda")
        expected = llm.generate("12 + 7", policy, gen_length=16)
        engine = Engine(llm.model, verifier=llm.verifier)
        graphs = engine.graphs = Rehearsed(llm.model, device)
        chosen, decode = resolve(policy, {"gen_length": 16})
        (found,) = engine.generate([Request(tuple(llm.encode("12 + 7")), chosen, decode)])
    assert (found.tokens, found.steps) == (expected.tokens, expected.steps)
    assert not graphs.replays


def test_a_capture_that_fails_is_told_once_and_changes_nothing() -> None:
    """There is no real GPU here."""
    asked = requests("pocket", "tacg", {})
    expected, _, _ = decoded("pocket", asked, graphs=False)
    pocket = model("pocket")
    with SimulatedDevice():
        engine = engine_with_graphs(pocket, max_rows=4)
        with pytest.warns(UserWarning, match="`graphs` is off from here on: a step could not") as told:
            found = engine.generate(asked)
    assert found == expected
    assert len(told) == 1
    assert engine.graphs is not None
    assert not engine.graphs.replays


def test_without_cuda_it_is_ignored() -> None:
    with pytest.warns(UserWarning, match="`graphs` is ignored: CUDA graphs need a CUDA device, not cpu"):
        assert tacg.load("pocket", graphs=True).generate("12 + 7", gen_length=16).tokens


def test_other_knobs_are_another_bucket() -> None:
    """Numbers that all rows share are kept by a graph, so they belong to its bucket; tensors of knobs do not."""
    pocket, (request, _) = model("pocket"), requests("pocket", "tacg", {})[:2]
    with SimulatedDevice():
        engine = Engine(pocket)
        engine.submit(request)
        engine.step(detail=False)
        (batch,) = engine._batches.values()
        policy, found = batch.policy, []
        low, high = (policy.replace(threshold=each) for each in (0.8, 0.99))
        mixed = [stack(pair, batch.device) for pair in ([policy, low], [policy, high])]
        for each in (policy, low, *mixed):
            batch.policy = each
            found.append(inputs_of(batch, batch.planned()))
    assert len({each.bucket for each in found}) == 3
    assert found[2].bucket == found[3].bucket
    assert len(found[3].tables) == len(found[0].tables) + 1
