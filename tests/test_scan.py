"""The readable scan against formulas written out over whole distributions."""

from __future__ import annotations

import pytest
import torch

from tacg.scan import Look, Memory, observe, scan
from tacg.types import Contrast, Needs
from tests.worlds import trajectory

EVERYTHING = Needs("margin", "entropy", "kl", "reference", "readout", contrast=Contrast(0.7, 0.6))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("vocabulary", [2, 3, 63, 1023, 2500])
def test_signals_are_what_their_names_say(vocabulary: int, backend: str) -> None:
    frames = trajectory(1, 4, 5, vocabulary, scale=2.0)
    memory, slots = Memory(1, 5), torch.arange(5)
    reference, previous = frames[0].clone(), torch.zeros(5, vocabulary, dtype=torch.float64)
    for number, z in enumerate(frames):
        found = scan(z, slots, memory, EVERYTHING, backend=backend)
        p = z.softmax(1)
        best = p.sort(dim=1, descending=True)
        assert torch.equal(found["token"], best.indices[:, 0])
        assert torch.allclose(found["confidence"], best.values[:, 0])
        assert torch.allclose(found["margin"], best.values[:, 0] - best.values[:, 1])
        assert torch.allclose(found["entropy"], -(p * p.log()).sum(1))
        assert torch.allclose(found["kl"], (p * ((p + 1e-12) / (previous + 1e-12)).log()).sum(1))
        at = best.indices[:, :1]
        assert torch.allclose(found["reference"], reference.softmax(1).gather(1, at)[:, 0])
        assert torch.allclose(found["readout"], (z + 0.7 * (z - reference)).softmax(1).gather(1, at)[:, 0])
        assert found["first"].tolist() == [number == 0] * 5
        reference, previous = 0.6 * reference + 0.4 * z, p


def test_only_what_is_needed_is_measured_and_kept() -> None:
    memory = Memory(1, 3)
    found = scan(torch.randn(3, 4), torch.arange(3), memory, Needs())
    assert found.keys() == {"token", "confidence", "first"}
    assert memory.reference is None
    assert memory.previous is None


def test_memory_follows_slots_and_forgets_rows() -> None:
    memory, needs = Memory(2, 3), Needs("kl")
    z = trajectory(0, 1, 6, 5)[0]
    scan(z, torch.arange(6), memory, needs)
    memory.grow(4)
    assert len(memory.seen) == 12
    memory.forget(0)
    again = scan(z[[0, 4]], torch.tensor([0, 4]), memory, needs)
    assert again["first"].tolist() == [True, False]
    assert float(again["kl"][1]) == pytest.approx(0, abs=1e-9)
    assert float(again["kl"][0]) > 20
    late = scan(z[[1, 4]], torch.tensor([1, 4]), memory, needs)
    assert late["first"].tolist() == [True, False], "a slot that was not observed lost its trajectory"


def test_nothing_observed_gives_neutral_boards() -> None:
    observed = torch.zeros(2, 3, dtype=torch.bool)
    count = torch.zeros(2, dtype=torch.int64)
    look = Look(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), Memory(2, 3), EVERYTHING)
    signals = observe(look, observed, observed, step=count, steps=count)
    assert signals.token.tolist() == [[-1] * 3] * 2
    assert all(not board.any() for board in (signals.confidence, signals.kl, signals.readout, signals.first))
