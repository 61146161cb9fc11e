"""Experts that compute in one call, against the same experts one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tacg.bench.simulated_device import SimulatedDevice
from tacg.bench.simulated_device.guard import register_guard
from tacg.errors import TacgError
from tacg.models import native_experts, products
from tacg.models.experts import Experts
from tacg.models.quantized import KINDS as PACKED
from tacg.models.quantized import make_room

if TYPE_CHECKING:
    from collections.abc import Iterator

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


native = pytest.mark.skipif(native_experts.kernel()[0] is None, reason=f"no kernel: {native_experts.kernel()[1]}")


@pytest.fixture
def _without_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TACG_NATIVE", "0")
    native_experts.kernel.cache_clear()
    yield
    native_experts.kernel.cache_clear()


@native
@pytest.mark.parametrize("flags", [(), ("-U__AVX512BF16__",)], ids=["as compiled", "widened"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@given(
    shape=st.tuples(
        st.integers(1, 9), st.integers(1, 40) | st.integers(250, 520), st.integers(1, 40) | st.integers(250, 520),
        st.integers(1, 30) | st.integers(90, 300), st.just(1),
    ),
    chosen=st.integers(1, 3), only=st.integers(1, 9),
)  # fmt: skip
@settings(max_examples=40)
def test_the_kernel_computes_the_same(
    flags: tuple[str, ...], kind: torch.dtype, shape: tuple[int, ...], chosen: int, only: int
) -> None:
    """For odd sizes and experts that nobody chooses as well; a token's bits are the same alone and among others."""
    experts, x, choice, weight = world((*shape[:4], min(chosen, shape[0])), kind)
    choice = choice % only  # later experts have no tokens, and a token may have an expert twice
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "WIDENED", {torch.bfloat16})
        compiled = native_experts.kernel(*flags)
        patch.setattr(native_experts, "kernel", lambda: compiled)
        odd = kind == torch.bfloat16 and native_experts.multiplies_pairs() and any(size % 2 for size in shape[1:3])
        assert native_experts.is_native(x, [*experts.parameters()]) != odd
        made, expected = experts(x, choice, weight), experts.one_by_one(x, choice, weight)
        assert made.dtype == kind
        error = 1e-5 if kind == torch.float32 else 2e-2
        scale = max(0.1, float(expected.float().abs().max()))  # a sum that cancels keeps the errors of its parts
        torch.testing.assert_close(made, expected, atol=error * scale, rtol=error)
        for part in (slice(0, 1), slice(1, 18), slice(len(x) // 2, None)):
            assert torch.equal(experts(x[part], choice[part], weight[part]), made[part])


@native
def test_threads_change_no_bit_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_experts, "WORTHWHILE", 1)
    experts, *given = world((16, 100, 36, 150, 4), torch.float32)
    before, made = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3, 40):
            torch.set_num_threads(count)
            made.append(experts(*given))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, made[0]) for each in made)


@native
def test_the_kernel_passes_on_what_is_not_finite() -> None:
    experts, x, choice, weight = world((4, 40, 12, 20, 2), torch.float32)
    expected = experts(x, choice, weight)
    x[3, 7] = torch.nan
    made = experts(x, choice, weight)
    assert made[3].isnan().all()
    others = torch.arange(20) != 3
    assert torch.equal(made[others], expected[others])


def test_the_kernel_is_for_what_it_can_do() -> None:
    for kind in (torch.float16, torch.float64):
        experts, x, _, _ = world(SHAPES[0], kind)
        assert not native_experts.is_native(x, [*experts.parameters()])
    experts, x, choice, weight = world(SHAPES[0], torch.float32)
    experts.requires_grad_(True)
    experts(x, choice, weight).sum().backward()
    assert experts.down_proj.grad is not None
    with torch.no_grad():
        assert native_experts.is_native(x, [*experts.parameters()]) == (native_experts.kernel()[0] is not None)


@pytest.mark.usefixtures("_without_kernel")
def test_without_the_kernel_nothing_is_missing() -> None:
    experts, *given = world(SHAPES[1], torch.float32)
    assert native_experts.kernel() == (None, "TACG_NATIVE=0")
    assert torch.equal(experts(*given), experts.one_by_one(*given))


@pytest.mark.usefixtures("_without_kernel")
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


@pytest.mark.usefixtures("_without_kernel")
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
