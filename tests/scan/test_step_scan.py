"""The readable scan against formulas written out over whole distributions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tacg
from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request
from tacg.errors import TacgError
from tacg.models.scripted import ScriptedDenoiser
from tacg.policies import get_policy
from tacg.scan import Trajectories
from tacg.types import CONTRASTED, EmaContrast, Needs, Past
from tests.worlds import ReactiveDenoiser, scan, trajectory

EVERYTHING = Needs(
    "margin", "gap", "entropy", "kl", "others", "sharp", "reverse_kl", "drift", "reference", "readout",
    contrast=EmaContrast(0.7, 0.6), past=Past(2, 0.5),
)  # fmt: skip


def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p * ((p + 1e-12) / (q + 1e-12)).log()).sum(1)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("vocabulary", [2, 3, 63, 1023, 2500, 17_001])
def test_signals_are_what_their_names_say(vocabulary: int, backend: str) -> None:
    frames = trajectory(1, 4, 5, vocabulary, scale=2.0)
    memory, slots = Trajectories(1, 5), torch.arange(5)
    nothing = torch.zeros(5, vocabulary, dtype=torch.float64)
    reference, previous, older = frames[0].clone(), nothing, nothing
    weights = torch.tensor([0.0, -0.5], dtype=torch.float64).softmax(0)
    for number, z in enumerate(frames):
        found = scan(z, slots, memory, EVERYTHING, backend=backend)
        p = z.softmax(1)
        best = p.sort(dim=1, descending=True)
        assert torch.equal(found["token"], best.indices[:, 0])
        assert torch.allclose(found["confidence"], best.values[:, 0])
        assert torch.allclose(found["margin"], best.values[:, 0] - best.values[:, 1])
        two = z.topk(2, dim=1).values
        assert torch.allclose(found["gap"], two[:, 0] - two[:, 1])
        assert torch.allclose(found["entropy"], -(p * p.log()).sum(1))
        assert torch.allclose(found["kl"], kl(p, previous))
        assert torch.allclose(found["others"], best.values[:, 1:].sum(1))
        assert torch.allclose(found["sharp"], (z / 0.2).softmax(1).amax(1))
        before = previous if number else torch.full_like(p, 1 / vocabulary)
        assert torch.allclose(found["reverse_kl"], (before * (before / p).log()).sum(1), atol=1e-9)
        assert torch.allclose(
            found["drift"], sum(w * kl(p, q) for w, q in zip(weights, (previous, older), strict=True))
        )
        at = best.indices[:, :1]
        assert torch.allclose(found["reference"], reference.softmax(1).gather(1, at)[:, 0])
        assert torch.allclose(found["readout"], (z + 0.7 * (z - reference)).softmax(1).gather(1, at)[:, 0])
        assert found["first"].tolist() == [number == 0] * 5
        reference, previous, older = 0.6 * reference + 0.4 * z, p, previous


@pytest.mark.parametrize("backend", ["reference", "cpu", "triton"])
@pytest.mark.parametrize("vocabulary", [63, 17_001])
def test_what_is_all_but_certain_has_an_order(vocabulary: int, backend: str) -> None:
    """Confidences that are 1 in float32: the others keep their digits down to 1e-15."""
    if backend == "triton":
        pytest.importorskip("triton")
    needs = Needs("others", "reference", "readout", contrast=EmaContrast(0.7, 0.6, fine=True))
    frames = trajectory(2, 4, 5, vocabulary, scale=0.5, dtype=torch.float32)
    frames[:, :, vocabulary // 2] += torch.arange(24, 34, 2) + torch.tensor(vocabulary).log()
    memory, reference = Trajectories(1, 5), frames[0].double()
    for number, frame in enumerate(frames):
        found, z = scan(frame, torch.arange(5), memory, needs, backend=backend), frame.double()
        rest = [
            each.softmax(1).scatter(1, found["token"][:, None], 0.0).sum(1)
            for each in (z, reference, z + 0.7 * (z - reference))
        ]
        assert (found["confidence"] == 1).all()
        torch.testing.assert_close(found["others"].double(), rest[0], rtol=1e-4, atol=2e-15)
        assert found["others"].argsort().tolist() == [4, 3, 2, 1, 0]
        for name, mass in zip(("reference", "readout"), rest[1:], strict=True):
            torch.testing.assert_close(found[name], 1 - mass, rtol=0, atol=3e-16 + 1e-4 * float(mass.max()))
        reference = 0.6 * reference + 0.4 * z if number else z


def test_only_what_is_needed_is_measured_and_kept() -> None:
    memory = Trajectories(1, 3)
    found = scan(torch.randn(3, 4), torch.arange(3), memory, Needs())
    assert found.keys() == {"token", "confidence", "peak", "first"}
    assert memory.memory.reference is None
    assert memory.memory.previous is None
    assert memory.memory.past is None


def test_memory_is_handed_on_and_forgets_rows() -> None:
    before, memory, needs = Trajectories(2, 3), Trajectories(4, 3), Needs("kl", "drift", past=Past(2, 0.0))
    z = trajectory(0, 1, 6, 5)[0]
    alone = scan(z, torch.arange(6), before, needs)
    memory.memory.take_over(before.memory, torch.arange(6), torch.arange(6))
    memory.seen[1] = True
    again = scan(z[[0, 4]], torch.tensor([0, 4]), memory, needs)
    assert again["first"].tolist() == [True, False]
    assert float(again["kl"][1]) == pytest.approx(0, abs=1e-9)
    assert float(again["kl"][0]) > 20
    assert float(again["drift"][1]) == pytest.approx(float(alone["kl"][4]) / 2), "seen once, and not the time before"
    late = scan(z[[1, 4]], torch.tensor([1, 4]), memory, needs)
    assert late["first"].tolist() == [True, False], "a slot that was not observed lost its trajectory"


def test_nothing_observed_gives_neutral_boards() -> None:
    observed = torch.zeros(2, 3, dtype=torch.bool)
    count = torch.zeros(2, dtype=torch.int64)
    nowhere = torch.zeros(0, dtype=torch.int64)
    step = Trajectories(2, 3).scan(torch.zeros(0, 5), EVERYTHING, observed, places=nowhere)
    signals = step.to_signals(observed, step=count, steps=count)
    assert signals.token.tolist() == [[-1] * 3] * 2
    assert all(not board.any() for board in (signals.confidence, signals.kl, signals.readout, signals.first))


def test_ten_thousand_steps_decide_alike_in_every_backend() -> None:
    """Random worlds in float32, whole decodes: what is committed, when and why does not depend on what scans."""
    steps = 0
    for seed in range(24):
        scripts = [trajectory(1000 * seed + row, 24, 33, 61, scale=2.5, dtype=torch.float32) for row in range(32)]
        policy = get_policy(("tacg", "tacg+klass")[seed % 2], threshold=0.8, tau_floor=0.4, support_lambda=0.7)
        told = {}
        for backend in ("reference", "cpu", "native"):
            decode = Decode(gen_length=32, block_length=16, early_stop=False, scan=backend)
            requests = [Request((row,), policy, decode) for row in range(32)]
            outputs = Engine(ScriptedDenoiser(scripts)).generate(requests)
            told[backend] = [[(c.position, c.token, c.step, c.reason) for c in output.commits] for output in outputs]
            steps += sum(output.steps for output in outputs) * (backend == "cpu")
        assert told["cpu"] == told["reference"]
        assert told["native"] == told["reference"]
    assert steps >= 10_000


def test_tokens_that_rise_from_nothing() -> None:
    """Wide rows put a floor under the posterior where KLASS adds 1e-12: the bound that `_divergence` states."""
    frames = trajectory(3, 12, 40, 17_001, scale=9.0, dtype=torch.float32)
    memories, slots, most = {name: Trajectories(1, 40) for name in ("reference", "cpu")}, torch.arange(40), 0.0
    for number, z in enumerate(frames):
        plain, fast = (scan(z, slots, memory, Needs("kl"), backend=name)["kl"] for name, memory in memories.items())
        assert bool((fast >= plain * (1 - 2e-5) - 3e-6).all())
        assert bool((fast <= plain * 1.06 + 1e-4).all())
        most = max(most, float(((fast - plain) / plain).max())) if number else most
    assert most > 1e-3, "there were such tokens"


def test_a_narrow_memory_is_nearly_as_good() -> None:
    """bf16 keeps 8 bits of each logit of the reference: support is off by less than 0.02, 0.002 on average."""
    frames = trajectory(7, 12, 64, 4000, scale=3.0, dtype=torch.float32)
    memories, slots = [Trajectories(1, 64), Trajectories(1, 64, kind="bf16")], torch.arange(64)
    needs = Needs("reference", "readout", contrast=EmaContrast(0.3, 0.95))
    off = []
    for z in frames:
        wide, narrow = (scan(z, slots, memory, needs) for memory in memories)
        off.append((wide["readout"] - wide["reference"] - narrow["readout"] + narrow["reference"]).abs())
    assert memories[1].memory.reference is not None
    assert memories[1].memory.reference.dtype == torch.bfloat16
    assert float(torch.stack(off).max()) < 0.02
    assert float(torch.stack(off).mean()) < 0.002


def test_hidden_states_stand_for_logits(llm: tacg.LLM) -> None:
    """The EMA of logits is the output layer of the EMA of hidden states: the same decode from a smaller memory."""
    knobs = {"gen_length": 48, "threshold": 0.3, "tau_floor": 0.05, "support_lambda": 2.0, "m_extra": 1}
    prompts = ["One.", "Two, or so."]
    plain, hidden = (llm.generate(prompts, "tacg", memory=kind, **knobs) for kind in ("fp32", "hidden"))
    for one, other in zip(plain, hidden, strict=True):
        for mine, theirs in zip(one.commits, other.commits, strict=True):
            assert replace(mine, confidence=0) == replace(theirs, confidence=0)
            assert mine.confidence == pytest.approx(theirs.confidence, rel=1e-5)
    assert any(commit.reason == "extra" for output in plain for commit in output.commits)


def test_a_model_without_hidden_states_is_told_so() -> None:
    with pytest.raises(TacgError, match="exposes its hidden states"):
        Engine(ReactiveDenoiser()).submit(Request((5,), get_policy("tacg"), Decode(memory="hidden")))


def test_an_explicit_scan_that_cannot_run_says_so() -> None:
    with pytest.raises(TacgError, match="triton follows logits of at most 32 bits"):
        scan(torch.zeros(1, 4, dtype=torch.float64), torch.arange(1), Trajectories(1, 1), Needs(), backend="triton")
    with pytest.raises(TacgError, match="Unknown scan 'cup'"):
        scan(torch.zeros(1, 4), torch.arange(1), Trajectories(1, 1), Needs(), backend="cup")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("vocabulary", [700, 16_500])
@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_tiles_equal_the_readable_scan(dtype: torch.dtype, vocabulary: int, kind: str) -> None:
    """Runs and gaps, positions that come and go, rows picked out of more, sampled proposals, suppressed tokens."""
    frames = trajectory(5, 5, 12, vocabulary, scale=3.0)
    memories = {name: Trajectories(2, 6, kind=kind) for name in ("reference", "cpu")}
    generator = torch.Generator().manual_seed(1)
    for number, frame in enumerate(frames):
        z = (frame + 7 * number).to(dtype)
        z[:, [3, vocabulary - 1]] = -torch.inf
        slots = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11], [0, 1, 3, 4, 5, 8, 9, 10, 11]][number % 2])
        proposal = torch.randint(4, vocabulary - 1, (len(slots),), generator=generator) if number == 3 else None
        told = []
        for name, memory in memories.items():
            observed = torch.zeros(12, dtype=torch.bool).index_fill(0, slots, True).view(2, 6)
            step = memory.scan(z, EVERYTHING, observed, places=slots, rows=slots, proposal=proposal, backend=name)
            both = step.contrast(torch.arange(len(slots)), CONTRASTED)
            told.append({**step.at_places, **both, "first": step.first})
            memory.follow(step, observed & (torch.arange(12).view(2, 6) != 4))
        for name, values in told[0].items():
            if values.dtype.is_floating_point:
                near = 3e-6 if kind == "fp32" else 1e-3  # two roundings of one sum may differ in the last of 8 bits
                torch.testing.assert_close(told[1][name], values, atol=near, rtol=2e-5)
            else:
                assert torch.equal(told[1][name], values), name


@pytest.mark.parametrize("vocabulary", [3, 17_001])
@pytest.mark.parametrize("low", [-100.0, -1e6, -1e9, -torch.inf])
def test_a_token_that_is_forbidden_later_was_there_before(low: float, vocabulary: int) -> None:
    """Past values do not depend on the current step, even where the scan has to undo a step to compute them."""
    first = torch.full((1, vocabulary), -20.0)
    first[0, :3] = torch.tensor([2.0, 5.0, 0.0])
    then = first.clone()
    then[0, 1] = low
    needs, found = Needs("reference", "readout", contrast=EmaContrast(0.3, 0.95)), {}
    for backend in ("reference", "cpu"):
        memory = Trajectories(1, 1)
        scan(first, torch.arange(1), memory, needs, backend=backend)
        found[backend] = scan(then, torch.arange(1), memory, needs, backend=backend)
    expected = first.softmax(dim=1)[0, 0]
    assert float(found["reference"]["reference"]) == pytest.approx(float(expected), rel=1e-5)
    for name in ("reference", "readout"):
        assert float(found["cpu"][name]) == pytest.approx(float(found["reference"][name]), rel=2e-3), name


@pytest.mark.parametrize("apart", [0.0, 2**-21, 2**-19, 1e-3])
def test_the_first_of_the_largest_wins_however_near_the_others_are(apart: float) -> None:
    """Rivals in one chunk of the vocabulary, in chunks far apart, in the last one; differences that softmax loses."""
    z = trajectory(2, 1, 4, 17_001, dtype=torch.float32)[0].clamp(max=4.0)
    for row, (best, rival) in enumerate([(40, 30), (9_000, 12), (17_000, 16_000), (700, 701)]):
        z[row, best], z[row, rival] = 5.0 + apart, 5.0
    needs = Needs("margin")
    plain, fast = (scan(z, torch.arange(4), Trajectories(1, 4), needs, backend=name) for name in ("reference", "cpu"))
    assert plain["token"].tolist() == ([40, 9_000, 17_000, 700] if apart else [30, 12, 16_000, 700])
    assert torch.equal(fast["token"], plain["token"])
    torch.testing.assert_close(fast["margin"], plain["margin"], atol=1e-8, rtol=1e-4)


def test_rounding_does_not_depend_on_neighbours() -> None:
    z = trajectory(4, 1, 18, 50_000, dtype=torch.float32)[0]
    needs = Needs("entropy", "kl")
    alone, among = (scan(z[:n], torch.arange(n), Trajectories(2, 9), needs) for n in (9, 18))
    for name in ("entropy", "kl"):
        assert torch.equal(alone[name], among[name][:9])
