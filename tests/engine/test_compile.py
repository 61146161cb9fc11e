"""Decide and commit as one graph: every policy traces without a break, and the gate becomes a handful of kernels."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

import tacg
from tacg.engine.advance import Boards, advance
from tacg.engine.batch import Batch
from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request
from tacg.policies import Policy, get_policy, policy_names
from tacg.types import Signals
from tests.worlds import MASK, ReactiveDenoiser

NAMES = [*policy_names(), "tacg+klass"]
KERNELS = 12


def step_of(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> tuple[Boards, Tensor, Signals, dict[str, Any]]:
    """The policy's inputs in the third step of a decode of four rows, with every signal measured."""
    caught: list[tuple[Boards, Tensor, Signals, dict[str, Any]]] = []
    plain = Batch.decide

    def decide(batch: Batch, signals: Signals) -> Any:
        caught.append((batch.boards, batch.answer.clone(), signals, dict(batch.trajectories.state)))
        return plain(batch, signals)

    monkeypatch.setattr(Batch, "decide", decide)
    engine = Engine(ReactiveDenoiser(3, scale=1.0), verifier=ReactiveDenoiser(99))
    decode = Decode(gen_length=24, block_length=12, early_stop=False)
    for row in range(4):
        engine.submit(Request((2 + row, 5), policy, decode))
    for _ in range(3):
        engine.step(detail=True)
    return caught[2]


def whole_step(policy: Policy, names: list[str]) -> Any:
    """Decide and commit, as a function of tensors alone."""

    def step(boards: Boards, answer: Tensor, tensors: list[Tensor], measured: dict[str, Tensor], state: Any) -> Any:
        signals = Signals(**dict(zip(names, tensors, strict=True)), measured=measured)
        decision, after = policy.decide(signals, state)
        boards, answer, kept, report = advance(boards, answer, signals, decision, policy.needs, MASK)
        return boards, answer, kept, report, after

    return step


def assert_alike(packed: Any, plain: Any, length: int) -> None:
    """The host reads the same from a report that was packed for a device as from one that was not."""
    assert len(packed.boards) == 1
    assert not hasattr(plain, "boards") or len(plain.boards) == 3
    assert packed.read(length) == plain.read(length)


def parts(signals: Signals) -> dict[str, Tensor]:
    values = {each.name: getattr(signals, each.name) for each in fields(signals)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@pytest.mark.parametrize("name", NAMES)
def test_decide_and_commit_are_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = get_policy(name)
    boards, answer, signals, state = step_of(policy, monkeypatch)
    given = parts(signals)
    step = whole_step(policy, list(given))
    plain = step(boards, answer, list(given.values()), dict(signals.measured), state)
    torch.compiler.reset()
    graph = torch.compile(step, fullgraph=True, backend="eager")
    found = graph(boards, answer, list(given.values()), dict(signals.measured), state)
    assert_alike(found[3], plain[3], answer.shape[1])


def test_the_gate_compiles_to_a_handful_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tacg.get_policy("tacg")
    boards, answer, signals, state = step_of(policy, monkeypatch)
    given = parts(signals)
    step = whole_step(policy, list(given))
    plain = step(boards, answer, list(given.values()), dict(signals.measured), state)
    compiled = torch.compile(step, fullgraph=True)
    found, (code, *_) = run_and_get_code(compiled, boards, answer, list(given.values()), dict(signals.measured), state)
    assert_alike(found[3], plain[3], answer.shape[1])
    body = code[code.index("def call(") :]
    kernels = re.findall(r"^\s+(?:cpp_fused\w*\(|buf\d+ = (?:torch\.ops|aten)\.|extern_kernels\.)", body, re.M)
    print(len(kernels), kernels)
    assert 0 < len(kernels) <= KERNELS
