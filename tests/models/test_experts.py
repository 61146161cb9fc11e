"""Experts that compute in one call, against the same experts one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tacg.bench.simulated_device import SimulatedDevice
from tacg.bench.simulated_device.guard import register_guard
from tacg.errors import TacgError
from tacg.models import products
from tacg.models.experts import Experts
from tacg.models.quantized import KINDS as PACKED
from tacg.models.quantized import make_room

KINDS = (torch.float32, torch.bfloat16, torch.float16)
# Experts, width, inner, tokens, chosen: few tokens, many, experts that nobody chooses, sizes that do not align, and so
# many tokens that a CPU takes experts one by one.
SHAPES = [
    (8, 64, 32, 3, 2), (16, 64, 32, 150, 4), (256, 32, 16, 20, 8), (4, 24, 12, 40, 4), (8, 20, 12, 9, 2),
    (4, 32, 16, 200, 2),
]  # fmt: skip


def world(shape: tuple[int, ...], kind: torch.dtype) -> tuple[Experts, Tensor, Tensor, Tensor]:
    """Experts with tokens, their choices and weights."""
    count, width, inner, tokens, chosen = shape
    generator = torch.Generator().manual_seed(5)
    experts = Experts(count, width, inner).requires_grad_(False)
    for table in experts.parameters():
        table.copy_(torch.randn(table.shape, generator=generator) * table.shape[2] ** -0.5)
    x = torch.randn(tokens, width, generator=generator)
    weight, choice = torch.rand(tokens, count, generator=generator).topk(chosen, dim=1)
    return experts.to(kind), x.to(kind), choice, weight


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_on_the_cpu_they_are_equal_to_the_last_bit(
    shape: tuple[int, ...], kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a token's result does not depend on how many others its experts are given."""
    monkeypatch.setattr(products, "WIDENED", frozenset())  # as the product of all groups is computed
    experts, x, choice, weight = world(shape, kind)
    made = experts(x, choice, weight)
    assert torch.equal(made, experts.one_by_one(x, choice, weight))
    for stop in (1, 2, len(x) // 2):
        assert torch.equal(experts(x[:stop], choice[:stop], weight[:stop]), made[:stop])


def test_without_the_product_of_groups_they_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    experts, *given = world(SHAPES[1], torch.float32)
    expected = experts(*given)
    monkeypatch.delattr(F, "grouped_mm")
    assert torch.equal(experts(*given), expected)


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_a_device_launches_few_kernels_and_waits_for_none(shape: tuple[int, ...]) -> None:
    try:
        register_guard()
    except TacgError as error:
        pytest.skip(str(error))
    experts, *given = world(shape, torch.bfloat16)
    expected = experts(*given).float()
    with SimulatedDevice() as device:
        away, moved = experts.to("cuda"), [each.to("cuda") for each in given]
        device.tally.clear()
        made = away(*moved)
        assert device.tally.count("kernel") <= 14
        assert device.tally.count("read") == device.tally.count("upload") == 0
        torch.testing.assert_close(made.cpu().float(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("at_once", [1, 5, 100])
def test_packed_experts_make_a_device_wait_for_nothing(
    kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are unpacked at a time, they give what they give one by one."""
    try:
        register_guard()
    except TacgError as error:
        pytest.skip(str(error))
    experts, *given = world((16, 64, 32, 40, 2), torch.bfloat16)
    given[1] = given[1].clamp(max=9)  # the last experts are chosen by nobody
    given[1][:, 1] = 3
    tables = {name: table.clone() for name, table in experts.named_parameters()}
    for name, room in make_room(experts, None, kind, lambda _: torch.device("cpu")).items():
        room.put(0, tables[name].flatten(0, 1))
    expected = experts(*given).float()
    monkeypatch.setattr("tacg.models.experts.UNPACKED", at_once * 2 * 64 * 32)
    with SimulatedDevice() as device:
        away, moved = experts.to("cuda"), [each.to("cuda") for each in given]
        device.tally.clear()
        made = away(*moved)
        assert device.tally.count("read") == device.tally.count("upload") == 0
        torch.testing.assert_close(made.cpu().float(), expected, atol=2e-2, rtol=2e-2)
