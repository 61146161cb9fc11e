"""The native kernel against the readable scan."""

from __future__ import annotations

import multiprocessing
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tacg
from tacg.errors import LogitsError, TacgError
from tacg.scan import Trajectories, compiled, native
from tacg.types import EmaContrast, Needs, Past
from tests.worlds import scan, trajectory

pytestmark = pytest.mark.skipif(compiled.kernel()[0] is None, reason=f"no native kernel: {compiled.kernel()[1]}")

EVERYTHING = Needs(
    "margin", "gap", "entropy", "kl", "others", "sharp", "reverse_kl", "drift", "reference", "readout",
    contrast=EmaContrast(0.7, 0.6), past=Past(2, 0.5),
)  # fmt: skip


@given(
    vocabulary=st.integers(2, 130) | st.sampled_from([1023, 1024, 1025, 3000]),
    positions=st.integers(1, 5),
    contrast=st.none()
    | st.builds(EmaContrast, st.sampled_from([0.0, 0.7]), st.sampled_from([0.0, 0.6, 1.0]), st.booleans()),
    names=st.sets(st.sampled_from(["margin", "gap", "entropy", "others", "kl"])),
    sampled=st.booleans(),
    gathered=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 99),
)
def test_equals_the_reference(
    vocabulary: int, positions: int, contrast: EmaContrast | None, names: set[str], sampled: bool, gathered: bool,
    dtype: torch.dtype, seed: int,
) -> None:  # fmt: skip
    """Ties, suppressed tokens, rows picked out of more, strided ones, positions that are not observed for a step."""
    needs = Needs(*names, *(["reference", "readout"] if contrast else []), contrast=contrast)
    frames = trajectory(seed, 3, 2 * positions, vocabulary, scale=3.0).mul(2).round().div(2)
    generator = torch.Generator().manual_seed(seed)
    memories = {name: Trajectories(positions, 1) for name in ("reference", "native")}
    for number, frame in enumerate(frames.to(dtype)):
        frame[:, vocabulary // 2 :: 7] = -torch.inf
        frame[:, 0] = 1.0
        before = frame.clone()
        places = torch.arange(positions) if number != 1 else torch.arange(0, positions, 2)
        rows = torch.randperm(2 * positions, generator=generator)[: len(places)]
        proposal = torch.multinomial(frame[rows].float().softmax(dim=1), 1, generator=generator).squeeze(1)
        observed = torch.zeros(positions, 1, dtype=torch.bool)
        observed[places] = True
        found = {}
        for name, memory in memories.items():
            logits = frame if gathered else frame[rows].repeat_interleave(2, dim=1)[:, ::2]
            step = memory.scan(
                logits, needs, observed, places=places, proposal=proposal if sampled else None, backend=name,
                rows=rows if gathered else None,
            )  # fmt: skip
            found[name] = step.at_places
            if contrast is not None and not step.fused:
                found[name] |= step.contrast(torch.arange(len(places)), ("reference", "readout"))
            memory.follow(step, observed)
        assert torch.equal(frame, before), "logits are only read"
        assert found["native"].keys() == found["reference"].keys()
        assert torch.equal(found["native"]["token"], found["reference"]["token"])
        torch.testing.assert_close(found["native"], found["reference"], atol=5e-6, rtol=3e-5, check_dtype=False)


def test_a_wide_vocabulary_equals_the_reference() -> None:
    """Many chunks; the largest logit in the first, the last and between; a rising row, where every chunk leads."""
    frames = trajectory(1, 3, 4, 50_001, scale=3.0, dtype=torch.float32)
    frames[:, 3] = torch.arange(50_001) / 5e3
    memories = {name: Trajectories(2, 2) for name in ("reference", "native")}
    for frame in frames:
        for row, best in enumerate((5, 50_000, 20_000)):
            frame[row, best] = 20.0 + row
        told = {
            name: scan(frame, torch.arange(4), memory, EVERYTHING, backend=name) for name, memory in memories.items()
        }
        torch.testing.assert_close(told["native"], told["reference"], atol=5e-6, rtol=3e-5)


def test_results_do_not_depend_on_neighbours_or_threads() -> None:
    z = trajectory(4, 2, 18, 5000, dtype=torch.float32)
    alone = [scan(z[0, :n], torch.arange(n), Trajectories(2, 9), EVERYTHING, backend="native") for n in (9, 18)]
    for name in alone[0]:
        assert torch.equal(alone[0][name], alone[1][name][:9])
    with mock.patch.object(native, "WORTHWHILE", 1), mock.patch.object(torch, "get_num_threads", return_value=5):
        apart = scan(z[0], torch.arange(18), Trajectories(2, 9), EVERYTHING, backend="native")
    for name, values in apart.items():
        assert torch.equal(values, alone[1][name])


def test_a_first_observation_is_neutral_to_the_last_bit() -> None:
    z = trajectory(5, 1, 8, 3000, scale=4.0, dtype=torch.float32)[0]
    found = scan(z, torch.arange(8), Trajectories(2, 4), EVERYTHING, backend="native")
    assert torch.equal(found["reference"], found["confidence"])
    assert torch.equal(found["readout"], found["confidence"])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 1500, 2999])
def test_unusable_logits_are_seen(bad: float, place: int) -> None:
    z = torch.zeros(3, 3000)
    z[1, place] = bad
    with pytest.raises(LogitsError, match=f"position 1 hold {bad}"):
        scan(z, torch.arange(3), Trajectories(1, 3), EVERYTHING, backend="native")
    with pytest.raises(LogitsError, match="only -inf"):
        scan(torch.full((1, 70), -torch.inf), torch.arange(1), Trajectories(1, 1), Needs(), backend="native")


def test_positions_out_of_view_are_neutral_and_keep_their_history() -> None:
    """A window that includes more than is observed, as branches have: the others are neither read nor changed."""
    memory, observed = Trajectories(1, 3), torch.ones(1, 3, dtype=torch.bool)
    needs = Needs("others", "reference", "readout", contrast=EmaContrast(0.3, 0.5, fine=True))
    memory.follow(memory.scan(torch.randn(3, 9), needs, observed, backend="native"), observed)
    assert memory.memory.reference is not None
    before = memory.memory.reference.clone()
    observed = torch.tensor([[True, False, True]])
    step = memory.scan(torch.randn(3, 9), needs, observed, exact=False, backend="native")
    count = torch.zeros(1, dtype=torch.int64)
    signals = step.to_signals(observed, step=count, steps=count)
    assert signals.token[0, 1] == -1
    assert [float(board[0, 1]) for board in (signals.confidence, signals.reference, signals.readout)] == [0.0] * 3
    assert (memory.memory.reference != before).any(dim=1).tolist() == [True, False, True]


def test_decodes_are_those_of_pytorchs_operations() -> None:
    pocket = tacg.load("pocket")
    prompts = ["Tom has 5 apples and buys 7 more. How many apples does Tom have?", "What is 12 + 30?"]
    for policy in ("confidence", "tacg", "tacg+klass"):
        told = [
            [
                [(commit.position, commit.token, commit.step, commit.reason) for commit in output.commits]
                for output in pocket.generate(prompts, policy, gen_length=64, scan=backend)
            ]
            for backend in ("native", "cpu", "reference")
        ]
        assert told[0] == told[1] == told[2]


def test_a_child_of_a_process_with_threads_scans_too() -> None:
    z = trajectory(4, 1, 6, 200, dtype=torch.float32)[0]
    with mock.patch.object(native, "WORTHWHILE", 1), mock.patch.object(torch, "get_num_threads", return_value=2):
        mine = scan(z, torch.arange(6), Trajectories(1, 6), Needs(), backend="native")
        with multiprocessing.get_context("fork").Pool(1) as pool:
            theirs = pool.apply_async(_tokens, (z,)).get(timeout=60)
    assert theirs == mine["token"].tolist()


def _tokens(z: torch.Tensor) -> list[int]:
    return scan(z, torch.arange(6), Trajectories(1, 6), Needs(), backend="native")["token"].tolist()


@pytest.mark.usefixtures("_without_compiler")
def test_without_a_compiler_pytorchs_operations_are_used(llm: tacg.LLM) -> None:
    step = Trajectories(1, 2).scan(torch.randn(2, 9), Needs(), torch.ones(1, 2, dtype=torch.bool))
    assert step.backend.__name__ == "tacg.scan.cpu"
    assert llm.generate("One.", "tacg", gen_length=16).tokens
    with pytest.raises(TacgError, match=r"needs a C compiler.*no C compiler"):
        scan(torch.zeros(1, 4), torch.arange(1), Trajectories(1, 1), Needs(), backend="native")
