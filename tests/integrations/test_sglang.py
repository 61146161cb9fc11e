"""The plug-in against the real algorithm base of SGLang, the oldest and the newest, on a model that fits a screen."""

from __future__ import annotations

import gc
import logging
import random
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request
from tacg.errors import TacgError
from tacg.integrations import sglang
from tacg.integrations.blocks import stable_seed
from tacg.models.base import whole
from tacg.policies import get_policy
from tests.integrations.releases import RELEASES, installed, release
from tests.worlds import MASK, ReactiveDenoiser

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 12
WORLD = ReactiveDenoiser(seed=5, scale=4.0)
VOCABULARY = WORLD.spec.vocab_size

# What goes into the YAML file, and how our own engine is asked for the same.
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "klass": {"base": "klass", "threshold": 0.6, "kl_threshold": 0.5, "tau_floor": 0.5},
    "schedule": {"base": "schedule", "rank_by": "margin", "steps": 5},
    "random": {"base": "schedule", "rank_by": "random", "k_extra": 0},
    "log ratio": {"support": "log_ratio", "tau_floor": 0.3, "support_lambda": 1.0, "threshold": 0.7, "m_base": 2},
    "preset": {"preset": "llada2-mini/any", "threshold": 0.8},
    "sampled": {"temperature": 0.8, "seed": 3, "threshold": 0.5},
    "bf16": {"memory": "bf16", "tau_floor": 0.3},
}


@pytest.fixture(scope="module", params=[min(RELEASES), max(RELEASES)])
def sglang_release(request: pytest.FixtureRequest) -> Iterator[str]:
    with installed(release(request.param)):
        sglang.register()
        yield request.param


def algorithm(config: dict[str, Any], *, fdfo: bool = True, mask_id: int = MASK) -> Any:
    from sglang.srt.dllm.algorithm import get_algorithm
    from sglang.srt.dllm.config import DllmConfig

    return get_algorithm(DllmConfig("TACG", config, BLOCK, mask_id, 4, fdfo))


class Runner:
    """SGLang's model runner: logits lie in one buffer, which every forward overwrites, first with nonsense."""

    def __init__(self) -> None:
        self.buffer = torch.empty(16 * BLOCK, VOCABULARY)
        self.forwards = 0

    def forward(self, batch: Any, pp_proxy_tensors: object = None) -> Any:
        self.forwards += 1
        self.buffer.fill_(torch.nan)
        rows = batch.input_ids.view(batch.batch_size, BLOCK)
        for number, row in enumerate(rows):
            self.buffer[number * BLOCK : (number + 1) * BLOCK] = logits_of(row)
        logits = self.buffer[: len(rows) * BLOCK]
        return SimpleNamespace(logits_output=SimpleNamespace(full_logits=logits), can_run_graph=False)


def logits_of(row: Tensor) -> Tensor:
    return WORLD(row, whole([len(row)]), torch.arange(len(row))).float()


class AsFloat32:
    """The same model for our own engine, in the precision that SGLang hands over."""

    spec, device = WORLD.spec, WORLD.device

    def __call__(self, *args: Any) -> Tensor:
        return WORLD(*args).float()


def batch_of(rows: list[Tensor], names: list[str], prompt: Tensor | None = None) -> Any:
    return SimpleNamespace(
        batch_size=len(rows),
        input_ids=torch.cat(rows),
        rids=names,
        positions=torch.arange(BLOCK).repeat(len(rows)) + 24,
        dllm_prompt_mask=prompt,
        mark_forward_metadata_ready=lambda **_: None,
    )


def some_rows(count: int, seed: int = 0) -> list[Tensor]:
    """Blocks with prompts of every length, one without any mask (a prefill block)."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for number in range(count):
        row = torch.randint(2, VOCABULARY, (BLOCK,), generator=generator)
        row[number % (BLOCK + 1) :] = MASK
        rows.append(row)
    return rows


def lock_step(config: dict[str, Any], rows: list[Tensor], names: list[str], forwards: int = BLOCK + 1) -> list[Tensor]:
    runner, batch = Runner(), batch_of([row.clone() for row in rows], names)
    algorithm(config, fdfo=False).run(runner, batch)
    assert runner.forwards <= forwards
    return list(batch.input_ids.view(-1, BLOCK))


def first_done_first_out(config: dict[str, Any], rows: list[Tensor], names: list[str], seed: int = 0) -> list[Tensor]:
    """Every round another mixture of the rows that are not done yet."""
    made, runner, dice = algorithm(config), Runner(), random.Random(seed)
    canvas, states, taken = [row.clone() for row in rows], [None] * len(rows), [0] * len(rows)
    waiting = list(range(len(rows)))
    while waiting:
        chosen = dice.sample(waiting, dice.randint(1, len(waiting)))
        batch = batch_of([canvas[row] for row in chosen], [names[row] for row in chosen])
        _, tokens, accepted, carried, _ = made.run(runner, batch, [states[row] for row in chosen])
        for place, row in enumerate(chosen):
            assert len(tokens[place]) == BLOCK
            canvas[row], states[row] = torch.tensor(tokens[place]), carried[place]
            taken[row] += 1
            if accepted[place]:
                waiting.remove(row)
                assert carried[place] is None
    assert all(count <= BLOCK + 1 for count in taken)
    assert len(made.blocks.free) == len(made.blocks.steps), "every seat was given back"
    return canvas


def our_engine(config: dict[str, Any], row: Tensor, name: str) -> list[int]:
    """The same block as a canvas whose masks are to be filled."""
    knobs = dict(config)
    spelling = knobs.pop("policy", "tacg") if "base" not in knobs else f"tacg+{knobs.pop('base')}"
    if "preset" in knobs:
        spelling += f":{knobs.pop('preset')}"
    settings = {key: knobs.pop(key) for key in ("temperature", "steps", "memory") if key in knobs}
    settings["seed"] = stable_seed(knobs.pop("seed", 0), name, 24)
    if "steps" in settings:
        settings["steps"] = min(settings["steps"], int((row == MASK).sum()))
    decode = Decode(gen_length=BLOCK, block_length=BLOCK, early_stop=False, **settings)
    request = Request((), get_policy(spelling, **knobs), decode, tuple(row.tolist()))
    (output,) = Engine(AsFloat32()).generate([request])
    return list(output.tokens)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_all_ways_give_what_our_own_engine_gives(sglang_release: str, config: dict[str, Any]) -> None:
    rows = some_rows(BLOCK + 1)
    names = [f"request {number}" for number in range(len(rows))]
    together = lock_step(config, rows, names)
    mixed = first_done_first_out(config, rows, names, seed=1)
    for number, row in enumerate(rows):
        written = together[number].tolist()
        assert written == mixed[number].tolist()
        assert written == lock_step(config, [row], [names[number]])[0].tolist(), "alone as in a batch"
        assert MASK not in written
        assert written[:number] == row[:number].tolist(), "the prompt is untouched"
        if number < BLOCK:
            assert written == our_engine(config, row, names[number])


def test_the_settings_decide_something(sglang_release: str) -> None:
    rows, names = some_rows(8), [str(number) for number in range(8)]
    ways = {name: torch.stack(lock_step(config, rows, names)).tolist() for name, config in CONFIGS.items()}
    assert ways["plain"] != ways["klass"] != ways["sampled"] != ways["plain"]


def test_samples_belong_to_the_request(sglang_release: str) -> None:
    config, rows = CONFIGS["sampled"], some_rows(1) * 3
    one, other, again = lock_step(config, rows, ["a", "b", "a"])
    assert one.tolist() == again.tolist() != other.tolist()
    assert one.tolist() != lock_step(config | {"seed": 4}, rows[:1], ["a"])[0].tolist()


def test_nothing_of_the_logits_buffer_is_kept(sglang_release: str) -> None:
    made, runner = algorithm({"base": "klass"}), Runner()
    batch = batch_of(some_rows(2), ["a", "b"])
    made.run(runner, batch)
    start, stop = runner.buffer.data_ptr(), runner.buffer.data_ptr() + runner.buffer.nbytes
    kept = [made.blocks.trajectories.memory.reference, made.blocks.trajectories.memory.previous]
    assert all(each is not None and not start <= each.data_ptr() < stop for each in kept)


def test_the_mask_is_never_written_however_likely(sglang_release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = logits_of

    def tempting(row: Tensor) -> Tensor:
        logits = real(row)
        logits[:, MASK] = 1e4
        return logits

    monkeypatch.setitem(globals(), "logits_of", tempting)
    (written,) = lock_step({}, some_rows(1), ["a"])
    assert MASK not in written.tolist()


def test_suppressed_ids_are_not_written(sglang_release: str) -> None:
    (before,) = lock_step({}, some_rows(1), ["a"])
    unwanted = before.unique().tolist()
    (after,) = lock_step({"suppress": unwanted}, some_rows(1), ["a"])
    assert not set(after.tolist()) & set(unwanted)


def test_a_mask_that_the_prompt_spells_stays(sglang_release: str) -> None:
    row = some_rows(5)[4]
    row[1] = MASK
    prompt = torch.arange(BLOCK)[None] < 4
    batch, made, state = batch_of([row.clone()], ["a"], prompt), algorithm({}), [None]
    for _ in range(BLOCK + 1):
        *_, accepted, state, _ = made.run(Runner(), batch, state)
    assert accepted == [BLOCK]
    assert batch.input_ids[:4].tolist() == row[:4].tolist()
    assert MASK not in batch.input_ids[4:].tolist()


def test_a_block_without_masks_is_done_and_takes_no_seat(sglang_release: str) -> None:
    made, batch = algorithm({}), batch_of([torch.full((BLOCK,), 7)], ["a"])
    _, tokens, accepted, states, _ = made.run(Runner(), batch)
    assert (tokens, accepted, states) == ([[7] * BLOCK], [BLOCK], [None])
    assert len(made.blocks.steps) == 0


def test_aborted_requests_give_their_seat_back(sglang_release: str) -> None:
    made, runner = algorithm({}), Runner()
    for number in range(20):
        made.run(runner, batch_of(some_rows(2), [f"{number}", f"{number}b"]))
        gc.collect()  # both states were dropped by the engine
    assert len(made.blocks.steps) <= 4
    assert sorted(made.blocks.free) == list(range(len(made.blocks.steps)))


@pytest.mark.parametrize("config", [{"tau_floor": 0.1, "support_lambda": 5.0}, CONFIGS["klass"]], ids=["tacg", "klass"])
def test_the_next_one_on_a_seat_starts_anew(sglang_release: str, config: dict[str, Any]) -> None:
    def rounds(made: Any, row: Tensor, name: str, count: int) -> list[list[int]]:
        batch, states, seen = batch_of([row.clone()], [name]), None, []
        for _ in range(count):
            *_, states, _ = made.run(Runner(), batch, states)
            seen.append(batch.input_ids.tolist())
        return seen

    used = algorithm(config)
    for seed in range(10):
        first, second = (some_rows(1, seed)[0], some_rows(3, seed)[2])
        rounds(used, first, "a", 3)  # then it is aborted
        assert rounds(used, second, "b", BLOCK) == rounds(algorithm(config), second, "b", BLOCK)
    assert len(used.blocks.steps) == 1, "it was the same seat all the time"


def test_unusable_logits_end_one_request_only(
    sglang_release: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = some_rows(3)
    sick = rows[1]
    alone = [lock_step({}, [row], [name])[0].tolist() for row, name in zip(rows, "abc", strict=True)]
    real = logits_of
    monkeypatch.setitem(
        globals(), "logits_of", lambda row: real(row) * (torch.nan if row[0] == sick[0] != MASK else 1.0)
    )
    with caplog.at_level(logging.ERROR):
        written = lock_step({}, rows, ["a", "b", "c"])
    assert [each.tolist() for each in written][::2] == alone[::2]
    assert written[1].tolist() == [int(sick[0])] + [0] * (BLOCK - 1)
    assert "request b" in caplog.text
    assert "request a" not in caplog.text


def test_step_maps_reach_the_request(sglang_release: str) -> None:
    made, runner, state = algorithm({"step_map": True}), Runner(), [None]
    batch = batch_of(some_rows(4)[3:], ["a"])
    request = SimpleNamespace(rid="a", customized_info=None)
    scheduler = SimpleNamespace(tp_worker=SimpleNamespace(dllm_algorithm=made))
    rounds = 0
    while True:
        *_, accepted, state, _ = made.run(runner, batch, state)
        sglang.hand_over_maps(scheduler, SimpleNamespace(reqs=[request]), None)
        rounds += 1
        if accepted == [BLOCK]:
            break
        assert request.customized_info is None
    steps, reasons = request.customized_info["step_maps"], request.customized_info["tacg_reason"]
    assert len(steps) == len(reasons) == BLOCK - 3
    assert set(steps) == set(range(1, rounds)), "every forward but the last one committed something"
    assert set(reasons) <= {"base", "extra", "fallback"}
    assert not made.maps


def test_the_hook_for_step_maps_finds_its_place(sglang_release: str) -> None:
    from sglang.srt.dllm.mixin.scheduler import SchedulerDllmMixin
    from sglang.srt.plugins.hook_registry import HookRegistry

    before = SchedulerDllmMixin.process_batch_result_dllm
    HookRegistry.apply_hooks()
    assert SchedulerDllmMixin.process_batch_result_dllm is not before


def test_registering_twice_is_harmless(sglang_release: str) -> None:
    from sglang.srt.dllm.algorithm import algo_name_to_cls

    before = algo_name_to_cls["TACG"]
    sglang.register()
    assert algo_name_to_cls["TACG"] is before


def test_registration_fails_loudly(sglang_release: str, caplog: pytest.LogCaptureFixture) -> None:
    from sglang.srt.dllm import algorithm as known
    from sglang.srt.dllm.algorithm.base import DllmAlgorithm

    ours = known.algo_name_to_cls["TACG"]
    known.algo_name_to_cls["TACG"] = DllmAlgorithm
    try:
        with caplog.at_level(logging.ERROR), pytest.raises(TacgError, match="already"):
            sglang.register()
    finally:
        known.algo_name_to_cls["TACG"] = ours
    assert "could not be registered" in caplog.text


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"treshold": 0.8}, "Did you mean 'threshold'"),
        ({"k_extra": -1}, "`k_extra` must be int >= 0, got -1"),
        ({"base": "klas"}, "Did you mean 'klass'"),
        ({"base": "tacg"}, "`base` must be"),
        ({"memory": "hidden"}, "`memory` must be auto | fp32 | bf16"),
        ({"suppress": "all"}, "`suppress` must be a list"),
        ({"preset": "llada2-mini/all"}, "Did you mean 'tacg:llada2-mini/any'"),
        ({"kl_threshold": 0.1}, "Unknown setting 'kl_threshold'"),
    ],
)
def test_a_wrong_file_is_refused(
    sglang_release: str, config: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises((TacgError, RuntimeError)):
        algorithm(config)
    assert told in caplog.text


def test_without_sglang_registration_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "sglang.srt.dllm", None)
    with caplog.at_level(logging.ERROR), pytest.raises(ImportError):
        sglang.register()
    assert "could not be registered" in caplog.text
