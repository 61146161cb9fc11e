"""Sampled proposals by the GPU's kernels, in Triton's interpreter, against the readable code."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor

from tacg.engine.draws import PROPOSAL, sample, uniform

draws = pytest.importorskip("tacg.engine.triton_draws")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of products that wrap, as they should

SEED = torch.tensor([0, 7, -(2**62)])
BLOCK, STEP = torch.tensor([0, 3, 1]), torch.tensor([5, 0, 123])
HEAT = torch.tensor([1.0, 0.3, 2.0])


def readable(logits: Tensor, places: Tensor, length: int) -> Tensor:
    random = uniform(SEED, BLOCK * (1 << 32) + STEP, length, PROPOSAL).view(-1, 1)
    return sample(logits, HEAT.repeat_interleave(length)[places], random[places]).squeeze(1)


@pytest.mark.parametrize("programs", [1, 40])
def test_chooses_what_the_readable_code_chooses(programs: int) -> None:
    """Also of a few places only, with strides, and without ever choosing a suppressed token."""
    generator = torch.Generator().manual_seed(programs)
    with mock.patch.object(draws, "TILE", 16), mock.patch("tacg.scan.triton.PROGRAMS", programs):
        for places in (None, torch.tensor([11, 2, 7])):
            count = 12 if places is None else 3
            logits = (torch.randn(count, 2 * 77, generator=generator) * 3)[:, ::2]
            logits[:, 20:60] = -1e4
            found = draws.drawn(logits, places, 4, SEED, BLOCK, STEP, HEAT)
            assert torch.equal(found, readable(logits, torch.arange(12) if places is None else places, 4))
            assert (logits.gather(1, found[:, None]) > -1e4).all()


def test_the_random_numbers_are_the_same_bits() -> None:
    """Among equal logits, whose sums are exact, the token is the number's leading bits."""
    logits = torch.zeros(12, 4096)
    random = uniform(SEED, BLOCK * (1 << 32) + STEP, 4, PROPOSAL).view(-1)
    assert torch.equal(draws.drawn(logits, None, 4, SEED, BLOCK, STEP, HEAT), (random * 4096).long())
