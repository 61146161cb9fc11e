"""What the plug-in relies on in SGLang: every algorithm base since 0.5.16, and the changes that are announced."""

from __future__ import annotations

import hashlib
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from tacg.errors import TacgError
from tacg.integrations import sglang
from tacg.integrations.settings import beyond_block
from tacg.policies import get_policy, policy_names
from tests.integrations.releases import BASE, RELEASES, installed, release
from tests.integrations.test_sglang import (
    BLOCK,
    CONFIGS,
    Runner,
    algorithm,
    batch_of,
    first_done_first_out,
    lock_step,
    our_engine,
    some_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

NEWEST = max(RELEASES)
FIT = [name for name in policy_names() if beyond_block(get_policy(name)) is None]


@pytest.fixture(scope="module", params=RELEASES)
def any_release(request: pytest.FixtureRequest) -> Iterator[str]:
    with installed(release(request.param)):
        sglang.register()
        yield request.param


@pytest.fixture
def newest() -> Iterator[None]:
    with installed(release(NEWEST)):
        sglang.register()
        yield


def test_the_base_is_the_one_that_was_read(any_release: str) -> None:
    from sglang.srt.dllm.algorithm.base import DllmAlgorithm

    source = (release(any_release) / BASE).read_bytes()
    assert hashlib.sha256(source).hexdigest() == RELEASES[any_release]
    assert list(inspect.signature(DllmAlgorithm.step).parameters)[1:] == ["forward_batch", "full_logits", "states"]
    assert list(inspect.signature(DllmAlgorithm.init_step_state).parameters)[1:] == ["forward_batch"]


@pytest.mark.parametrize("config", ["plain", "klass", "sampled"])
def test_every_release_gives_what_our_own_engine_gives(any_release: str, config: str) -> None:
    rows = some_rows(BLOCK)[::3]
    names = [str(number) for number in range(len(rows))]
    expected = [our_engine(CONFIGS[config], row, name) for row, name in zip(rows, names, strict=True)]
    assert [row.tolist() for row in lock_step(CONFIGS[config], rows, names)] == expected
    assert [row.tolist() for row in first_done_first_out(CONFIGS[config], rows, names)] == expected


@pytest.mark.parametrize("policy", FIT)
def test_every_policy_that_fits_a_block_runs_without_the_gate(newest: None, policy: str) -> None:
    rows, names = some_rows(7)[::3], ["a", "b", "c"]
    expected = [our_engine({"policy": policy}, row, name) for row, name in zip(rows, names, strict=True)]
    assert [row.tolist() for row in first_done_first_out({"policy": policy}, rows, names)] == expected


# -- announced, in no release yet ------------------------------------------------------------------------------------


def in_rounds(config: dict[str, Any], rows: list[Tensor], steps: int) -> tuple[list[list[int]], list[int]]:
    """Rounds of several steps of one batch, handing over what the model returned; canvases, and steps until done."""
    made, runner = algorithm(config), Runner()
    canvas, done_at = [row.clone() for row in rows], [0] * len(rows)
    states: list[Any] = [None] * len(rows)
    waiting = list(range(len(rows)))
    while waiting:
        batch = batch_of([canvas[row] for row in waiting], [str(row) for row in waiting])
        fresh = made.init_step_state(batch)
        mine = [fresh[at] if states[row] is None else states[row] for at, row in enumerate(waiting)]
        for _ in range(steps):
            done = made.step(batch, runner.forward(batch).logits_output, mine)
            for at, row in enumerate(waiting):
                done_at[row] += not done[at]
            if all(done):
                break
        for at, row in enumerate(waiting):
            canvas[row], states[row] = batch.input_ids.view(-1, BLOCK)[at].clone(), mine[at]
        waiting = [row for at, row in enumerate(waiting) if not done[at]]
    return [row.tolist() for row in canvas], done_at


@pytest.mark.parametrize("config", ["plain", "klass", "sampled"])
def test_several_steps_a_round_are_single_ones(newest: None, config: str) -> None:
    rows = some_rows(9)
    single = in_rounds(CONFIGS[config], rows, 1)
    assert len(set(single[1])) > 2, "rows end at different steps"
    assert in_rounds(CONFIGS[config], rows, 2) == in_rounds(CONFIGS[config], rows, 5) == single


def test_only_a_summary_of_the_vocabulary_is_refused(newest: None, caplog: pytest.LogCaptureFixture) -> None:
    made, batch = algorithm({}), batch_of(some_rows(1), ["a"])
    summary = SimpleNamespace(full_logits=None, dllm_vocab_state=object())
    with pytest.raises(TacgError, match=r"no logits of the whole vocabulary.*dllm_vocab_state"):
        made.step(batch, summary, made.init_step_state(batch))
    assert "LowConfidence" in caplog.text
    complete = batch_of([torch.full((BLOCK,), 7)], ["a"])
    assert made.step(complete, summary, made.init_step_state(complete)) == [True], "nothing is to be decided there"


def test_step_maps_are_told_once(newest: None) -> None:
    """Under SGLang's own name; where SGLang is asked to count steps itself, only the reasons are added."""
    for theirs in (False, True):
        made, batch = algorithm({"step_map": True}), batch_of(some_rows(4)[3:], ["a"])
        assert made.supports_step_maps
        states: Any = None
        for _ in range(BLOCK + 1):
            *_, states, _ = made.run(Runner(), batch, states)
            if states == [None]:
                break
        request = SimpleNamespace(rid="a", customized_info=None, return_step_maps=theirs)
        scheduler = SimpleNamespace(tp_worker=SimpleNamespace(dllm_algorithm=made))
        sglang.hand_over_maps(scheduler, SimpleNamespace(reqs=[request]))
        told = request.customized_info
        assert told.keys() == ({"tacg_reason"} if theirs else {"step_maps", "tacg_reason"})
        assert len(told["tacg_reason"]) == BLOCK - 3
        assert min(told.get("step_maps", [1])) == 1
