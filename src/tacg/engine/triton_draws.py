"""Sampled proposals on a GPU, in two kernels: the sums of the parts of a row, then the token that a random number hits.

The random numbers are those of `draws.uniform`, bit for bit, and the choice is that of `draws.sample`, except where a
random number falls on the border between two tokens to within rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from tacg.devices import current_device
from tacg.engine import draws
from tacg.scan.triton import TILE, WARPS, split

if TYPE_CHECKING:
    from torch import Tensor

MIX_1, MIX_2 = (tl.constexpr(each) for each in draws.MIX)
SEED, STEP, PLACE = tl.constexpr(draws.SEED), tl.constexpr(draws.STEP), tl.constexpr(draws.PLACE)
OFFSET = tl.constexpr(draws.PROPOSAL * draws.DRAW)  # of the draw that proposals use


@triton.jit
def _mixed(x):  # type: ignore[no-untyped-def]
    """`draws._mixed`."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * MIX_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


@triton.jit  # type: ignore[untyped-decorator]
def weigh_kernel(  # type: ignore[no-untyped-def]
    logits, row_stride, column_stride, places, temperature, parts, count, size, span, length, splits,
    everywhere: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The maximum and the sum of exponentials of z / T over a part of a position."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = row if everywhere else tl.load(places + row)
    heat = tl.load(temperature + place // length)
    peak, total = -3e38, 0.0
    for start in range(part * span, tl.minimum((part + 1) * span, size), tile):
        column = start + tl.arange(0, tile)
        inside = column < size
        z = tl.load(logits + row * row_stride + column * column_stride, mask=inside, other=0.0).to(tl.float32) / heat
        higher = tl.maximum(peak, tl.max(tl.where(inside, z, -3e38)))
        total = total * tl.exp(peak - higher) + tl.sum(tl.where(inside, tl.exp(z - higher), 0.0))
        peak = higher
    tl.store(parts + part * count + row, peak)
    tl.store(parts + (splits + part) * count + row, total)


@triton.jit  # type: ignore[untyped-decorator]
def draw_kernel(  # type: ignore[no-untyped-def]
    logits, row_stride, column_stride, places, temperature, seed, block, step, parts, token_out,
    count, size, span, length, splits, everywhere: tl.constexpr, room: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The token of a position: the part that the random number falls into, then the place in that part."""
    row = tl.program_id(0).to(tl.int64)
    place = row if everywhere else tl.load(places + row)
    owner = place // length
    heat = tl.load(temperature + owner)
    turn = tl.load(block + owner) * (1 << 32) + tl.load(step + owner)
    x = _mixed(tl.load(seed + owner) * SEED) + turn * STEP
    x = _mixed(x + (place - owner * length) * PLACE + OFFSET)
    uniform = ((x >> 40) & 0xFFFFFF).to(tl.float32) * (1.0 / (1 << 24))

    number = tl.arange(0, room)
    known = number < splits
    peaks = tl.load(parts + number * count + row, mask=known, other=-3e38)
    totals = tl.load(parts + (splits + number) * count + row, mask=known, other=0.0)
    peak = tl.max(peaks)
    ends = tl.cumsum(totals * tl.exp(peaks - peak), axis=0)
    whole = tl.max(ends)
    mark = tl.minimum(uniform * whole, whole * (1 - 1.0 / (1 << 22)))  # never beyond the last possible token
    part = tl.minimum(tl.sum((known & (ends <= mark)).to(tl.int32)), splits - 1)
    passed = tl.max(tl.where(number < part, ends, 0.0))

    token, last = size, 0
    for start in range(part * span, tl.minimum((part + 1) * span, size), tile):
        column = start + tl.arange(0, tile)
        inside = column < size
        z = tl.load(logits + row * row_stride + column * column_stride, mask=inside, other=0.0).to(tl.float32) / heat
        weight = tl.where(inside, tl.exp(z - peak), 0.0)
        hit = (passed + tl.cumsum(weight, axis=0) > mark) & (weight > 0.0)
        token = tl.minimum(token, tl.min(tl.where(hit, column, size)))
        last = tl.maximum(last, tl.max(tl.where(weight > 0.0, column, 0)))
        passed += tl.sum(weight)
    tl.store(token_out + row, tl.minimum(token, last).to(tl.int64))


def drawn(
    logits: Tensor, places: Tensor | None, length: int, seed: Tensor, block: Tensor, step: Tensor, temperature: Tensor
) -> Tensor:
    """int64 [P]: the proposals of P positions with logits [P, V], which are `places` (None: all) of [R * length].

    seed, block, step  int64 [R]; temperature float [R]
    """
    count, size = logits.shape
    tile = min(TILE, triton.next_power_of_2(size))
    splits, span = split(count, size, tile)
    token = torch.empty(count, dtype=torch.int64, device=logits.device)
    parts = torch.empty(2, splits, count, device=logits.device)
    source = logits, logits.stride(0), logits.stride(1), token if places is None else places, temperature
    shape = {"everywhere": places is None, "tile": tile, "num_warps": WARPS}
    with current_device(logits):
        weigh_kernel[(count, splits)](*source, parts, count, size, span, length, splits, **shape)
        draw_kernel[(count,)](
            *source, seed, block, step, parts, token, count, size, span, length, splits,
            room=triton.next_power_of_2(splits), **shape,
        )  # fmt: skip
    return token
