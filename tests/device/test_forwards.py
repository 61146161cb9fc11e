"""Forwards on a device, where all rows attend at once, against the CPU's, where each attends by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import tacg
from tacg.bench.simulated_device import SimulatedDevice, Tally, attention
from tacg.cache import Cache, Store
from tacg.models import lanes
from tacg.models.base import AttentionMap, Span, Spans
from tacg.models.quantized import KINDS
from tacg.models.rows import packed_rows
from tacg.models.tiny import random_model, write_checkpoint

Forward = list[Span]
FAMILIES = ("llada", "dream", "llada2", "llada-moe", "qwen2")


def stored(*lengths: int) -> list[Cache]:
    store = Store()
    return [store.row(slot, length, len(lengths)) for slot, length in enumerate(lengths)]


def unlike() -> list[Forward]:
    return [[Span(0, length, length) for length in (40, 17, 64, 33)]]


def alike() -> list[Forward]:
    return [[Span(0, 32, 32) for _ in range(3)]]


def dual() -> list[Forward]:
    """One block of each row, with cached positions before and after it."""
    caches = stored(70, 40, 96)
    whole = [Span(0, cache.length, cache.length, cache) for cache in caches]
    return [whole, [Span(32, stop, cache.length, cache) for stop, cache in zip((50, 40, 64), caches, strict=True)]]


def prefix() -> list[Forward]:
    """Rows computed from a block on; some are in their first step, some have a gap."""
    first, second, third = stored(64, 96, 96)
    again = [Span(32, 64, 64, first), Span(0, 96, 96, second), Span(64, 96, 96, third)]
    gap = [Span(0, 64, 54, first, (40, 50)), Span(32, 96, 76, second, (70, 90)), Span(64, 96, 96, third)]
    return [[Span(0, 64, 64, first), Span(0, 96, 96, second), Span(0, 96, 96, third)], again, gap]


def shadows() -> list[Forward]:
    """Beside rows without one; over a cache, too."""
    first, second = stored(64, 64)
    plain = [Span(0, 64, 64, None, (0, 0), (32, 64)), Span(0, 32, 32), Span(0, 96, 96, None, (0, 0), (64, 80))]
    filled = [Span(0, 32, 32, first), Span(0, 32, 32, second)]
    return [plain, filled, [Span(32, 64, 64, first, (0, 0), (32, 64)), Span(32, 64, 64, second)]]


def stores() -> list[Forward]:
    """Rows of two batches in one forward, and rows that keep nothing."""
    (first, second), (third,) = stored(64, 64), stored(64)
    begin = [Span(0, 32, 32, cache) for cache in (first, second, third)]
    return [begin, [Span(32, 64, 64, first), Span(0, 30, 30), Span(32, 64, 64, third), Span(32, 64, 64, second)]]


CASES: dict[Callable[[], list[Forward]], tuple[str, ...]] = {
    unlike: FAMILIES,
    alike: FAMILIES,
    dual: ("llada", "dream"),
    prefix: ("llada", "dream"),
    shadows: ("llada", "llada2"),
    stores: FAMILIES,
}


def logits(family: str, forwards: Sequence[Forward], device: str, dtype: torch.dtype) -> tuple[list[Tensor], Tally]:
    """The logits of every forward at all of its tokens, and what the last forward cost."""
    with SimulatedDevice() as simulated, torch.no_grad():
        model, made = random_model(family, liveliness=2.0).to(device, dtype), []
        for spans in forwards:
            generator = torch.Generator().manual_seed(sum(map(len, spans)))
            tokens = torch.randint(2, 100, (sum(map(len, spans)),), generator=generator).to(device)
            select = torch.arange(len(tokens), device=device)
            simulated.tally.clear()
            made.append(model(tokens, spans, select))
            tally = simulated.tally.copy()
        return [each.cpu().float() for each in made], tally


@pytest.mark.parametrize("kernel", ["padded", "varlen"])
@pytest.mark.parametrize(
    ("case", "family"),
    [(case, family) for case, families in CASES.items() for family in families],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_logits_are_the_cpus(
    case: Callable[[], list[Forward]], family: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to rounding, in float32, which the emulated kernel allows in this test only."""
    if kernel == "varlen":
        for module, name in ((lanes, "VARLEN_TYPES"), (attention, "TYPES")):
            monkeypatch.setattr(module, name, {torch.float32})
    expected, _ = logits(family, case(), "cpu", torch.float32)
    found, tally = logits(family, case(), "cuda", torch.float32)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)
    assert tally.count("upload") == 1
    causal = family == "qwen2"  # whose rows are all under a mask
    assert ("varlen_attention" in tally.by("operation")) == (kernel == "varlen" and not causal)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["padded", "varlen"])
@pytest.mark.parametrize("family", ["llada", "llada2"])
def test_kernels_do_not_depend_on_the_number_of_rows(family: str, dtype: torch.dtype) -> None:
    counts = set()
    for rows in (2, 5, 9):
        caches = stored(*(96 + 32 * (row % 2) for row in range(rows)))
        first = [Span(0, 32, 32, cache) for cache in caches]
        then = [Span(32, 64, 64, cache) for cache in caches]
        if family == "llada":  # the whole row first, then unlike parts of it
            first = [Span(0, cache.length, cache.length, cache) for cache in caches]
            then = [Span(32, 60 + row, cache.length, cache) for row, cache in enumerate(caches)]
        _, tally = logits(family, [first, then], "cuda", dtype)
        groups = tally.by("operation").get("_grouped_mm", {}).get("kernel", 0)
        counts.add((tally.count("kernel") - groups, tally.by("operation").get("varlen_attention", {}).get("kernel")))
    assert len(counts) == 1
    assert ({fused for _, fused in counts} == {None}) == (dtype == torch.float32)


def test_what_is_known_of_spans_is_not_worked_out_again() -> None:
    with SimulatedDevice() as device, torch.no_grad():
        model, spans = random_model("llada").to("cuda"), Spans([Span(0, 20, 20), Span(0, 30, 30)])
        tokens, select = torch.arange(50, device="cuda"), torch.arange(9, device="cuda")
        first, cost = model(tokens, spans, select).cpu(), device.tally.count("kernel")
        device.tally.clear()
        assert torch.equal(model(tokens, spans, select).cpu(), first)
        assert device.tally.count("upload") == 0
        assert device.tally.count("kernel") < cost


def test_attention_is_shown_as_on_the_cpu() -> None:
    maps = {"cpu": AttentionMap(32, 50, 1.0), "cuda": AttentionMap(32, 50, 1.0)}
    for device, each in maps.items():
        (cache,) = stored(64)
        spans = [Span(0, 64, 64, cache, attention=each), Span(0, 20, 20)]
        logits("llada", [spans], device, torch.float32)
    with SimulatedDevice():
        torch.testing.assert_close(maps["cuda"].mean().cpu(), maps["cpu"].mean(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llada", "dream", "llada2", "llada-moe"])
def test_smaller_weights_are_the_cpus(family: str, kind: str, tmp_path: Path) -> None:
    source, ids = write_checkpoint(tmp_path, family=family, liveliness=1.0), torch.arange(6, 54).reshape(2, 24)
    with SimulatedDevice():
        made = tacg.load(source, device="cuda", quantize=kind).logits(ids).cpu()
    torch.testing.assert_close(made, tacg.load(source, quantize=kind).logits(ids), atol=1e-5, rtol=1e-5)


def test_without_pytorchs_kernel_rows_are_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "varlen_attention" in logits("llada", dual(), "cuda", torch.bfloat16)[1].by("operation")
    monkeypatch.setattr(lanes, "varlen_kernel", lambda: None)
    assert "varlen_attention" not in logits("llada", dual(), "cuda", torch.bfloat16)[1].by("operation")


@pytest.mark.parametrize(("block", "window"), [(None, None), (8, None), (1, None), (None, 5), (None, 70), (16, 9)])
def test_every_mask_is_the_cpus(block: int | None, window: int | None) -> None:
    """Attention alone, under masks that few families have: rows with and without a cache, a gap and shadows."""

    def attended(device: str) -> list[Tensor]:
        generator = torch.Generator().manual_seed(7)
        first, second = stored(40, 64)
        begin = [Span(0, 24, 24, first), Span(0, 32, 32, second), Span(0, 11, 11), Span(0, 50, 40, None, (20, 30))]
        then = [
            Span(24, 40, 40, first, (0, 0), (24, 30)),
            Span(32, 48, 48, second),
            Span(0, 20, 20, None, (0, 0), (8, 16)),
        ]
        made = []
        with SimulatedDevice(), torch.no_grad():
            for spans in (begin, then):
                place = torch.device(device)
                rows = packed_rows(spans, 8, 1e4, device=place, dtype=torch.float32, block=block, window=window)
                size = sum(map(len, spans))
                q, k, v = (torch.randn(size, heads, 12, generator=generator).to(device) for heads in (4, 2, 2))
                made.append(rows.attend(0, *rows.rotate(q, k), v).cpu())
        return made

    torch.testing.assert_close(attended("cuda"), attended("cpu"), atol=1e-5, rtol=1e-5)
