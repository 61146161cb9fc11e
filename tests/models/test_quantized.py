"""Packed weights: their error, what is packed, what is refused, and that rows do not influence each other."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional as F

import tacg
from tacg.bench import load
from tacg.bench.quantize import cross_entropy
from tacg.models.quantized import GROUP, KINDS, PackedWeight
from tacg.models.tiny import SHAPES, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")
IDS = torch.arange(6, 54).reshape(2, 24)


def packed(kind: str, weight: torch.Tensor) -> PackedWeight:
    made = PackedWeight.empty(kind, tuple(weight.shape), CPU)
    made.put(0, weight.flatten(0, -2))
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_is_off_by_half_a_step_at_most(kind: str) -> None:
    weight = torch.randn(96, 128, generator=torch.Generator().manual_seed(0))
    weight[3], weight[4, :GROUP] = 0.0, 0.25  # nothing to scale by
    made = packed(kind, weight).unpacked(0, 96, torch.float32)
    if kind == "int8":
        step = (weight.abs().amax(dim=1, keepdim=True) / 127).expand_as(weight)
    else:
        groups = weight.unflatten(1, (-1, GROUP))
        step = ((groups.amax(dim=2) - groups.amin(dim=2)) / 15).repeat_interleave(GROUP, dim=1)
    slack = 2e-3 * weight.abs().amax()  # a scale and a lowest value in float16
    assert bool(((made - weight).abs() <= 0.5 * step + (slack if kind == "int4" else 1e-6)).all())


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_is_that_of_the_unpacked_weight(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(160, 64, generator=generator), torch.randn(160, generator=generator)
    x, made = torch.randn(40, 64, generator=generator), packed(kind, weight)
    expected = F.linear(x, made.unpacked(0, 160, torch.float32), bias)
    assert torch.allclose(made.product(x, bias), expected, atol=1e-5)
    monkeypatch.setattr("tacg.models.quantized.CACHED", 64 * 64)
    assert torch.allclose(made.product(x, bias), expected, atol=1e-5), "in several pieces"
    stack = packed(kind, torch.stack([weight, -weight]))
    assert torch.allclose(stack[1].product(x, None), made.product(x, None).neg(), atol=1.0 if kind == "int4" else 1e-5)


@pytest.mark.parametrize("family", SHAPES)
def test_every_family_takes_smaller_weights(family: str, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path, family=family, liveliness=1.0)
    full = tacg.load(source)
    sizes = [sum(each.nbytes for each in full.model.parameters())]
    off = []
    for kind in ("int8", "int4"):
        small = tacg.load(source, quantize=kind)
        assert small.identity["quantize"] == kind
        assert small.identity["weights"] != full.identity["weights"]
        sizes.append(sum(each.nbytes for each in small.model.parameters()))
        off.append(float((small.logits(IDS) - full.logits(IDS)).norm() / full.logits(IDS).norm()))
        kept = {name for name, each in small.model.named_parameters() if each.is_floating_point() and each.dim() == 2}
        assert all("wte" in name or "embed" in name or ".gate." in name or "scale" in name for name in kept)
    assert sizes[0] > sizes[1] > sizes[2]
    assert off[0] < off[1] < 1.5
    assert off[0] < (0.35 if "experts" in "".join(full.model.state_dict()) else 0.05), "a token may change its expert"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_does_not_depend_on_its_neighbours(kind: str, dtype: str) -> None:
    llm = tacg.load("pocket", quantize=kind, dtype=dtype)
    prompts = ["Tom has 5 apples and buys 7 more. How many apples does Tom have?", "Ann has 3 pens.", "What is 3 + 4?"]
    together = llm.generate(prompts, gen_length=16, block_length=8)
    for prompt, out in zip(prompts, together, strict=True):
        alone = llm.generate(prompt, gen_length=16, block_length=8)
        assert (alone.tokens, alone.steps, alone.forwards) == (out.tokens, out.steps, out.forwards)
    ids = torch.tensor([llm.encode(prompts[0])])
    assert torch.equal(llm.logits(ids), llm.logits(ids.repeat(5, 1))[3:4])


def test_perplexity_stays_within_what_is_promised() -> None:
    losses = {kind: cross_entropy(tacg.load("pocket", quantize=kind), "pocket-math", 12) for kind in (None, *KINDS)}
    assert losses["int8"] - losses[None] <= 0.005
    assert losses["int4"] - losses[None] <= 0.03


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says how much memory a process holds")
def test_loading_holds_little_beside_what_is_kept() -> None:
    (row,) = load.measure(0.2, families=("llada",), quantize="int8")
    assert row["peak_bytes"] - row["kept_bytes"] < 64e6, "a few megabytes for pieces, and for the tokenizer's code"
    assert row["kept_bytes"] < 0.52 * row["bytes"]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tacg.TacgError, match=r"Unknown way to quantize 'int9'\. Did you mean 'int8'"):
        tacg.load("pocket", quantize="int9")
    source = write_checkpoint(tmp_path, mlp_hidden_size=72)
    told = r"Llada cannot be quantized to int4: 'model.transformer.blocks.0.ff_out.weight' is 72 wide.* Use int8"
    with pytest.raises(tacg.TacgError, match=told):
        tacg.load(source, quantize="int4")
    assert tacg.load(source, quantize="int8").model.quantize == "int8"
