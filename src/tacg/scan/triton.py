"""The scan on a GPU: the logits are read once, the reference is read and written once.

A program handles one position, or a part of its vocabulary if there are too few positions to keep a GPU busy. It walks
over the vocabulary in tiles, keeping running maxima and sums (online softmax) of the posterior, the reference and the
readout. A second, small kernel combines the parts of a position, if there are several. Everything is measured, because
on a GPU arithmetic is free and memory traffic is not. The stored data differ from the CPU's in one detail: the largest
logit is known only at the end of the walk, so the EMA is shifted by that of the previous step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from tacg.devices import current_device
from tacg.scan.fused import SCALARS, by_name

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.scan.memory import Memory
    from tacg.types import Needs

PARTS = 16  # numbers that a part of a position hands to `combine_kernel`
TILE = 2048
WARPS = 8
PROGRAMS = 512  # two rounds on a large GPU, whose registers hold two programs per multiprocessor


def split(count: int, size: int, tile: int) -> tuple[int, int]:
    """How many parts the vocabulary is divided into, and how many columns a part has.

    This depends on shapes only. A part is at least one tile, and none is empty.
    """
    tiles = triton.cdiv(size, tile)
    span: int = tile * triton.cdiv(tiles, min(tiles, triton.cdiv(PROGRAMS, max(1, count))))
    return triton.cdiv(size, span), span


@triton.jit
def _rescaled(peak, total, others, values, inside, aside, joins):  # type: ignore[no-untyped-def]
    """Update the running maximum, the running sum of exponentials, and that sum without the proposal, with a tile.

    aside  marks the proposal if it is in this tile; `joins`: the value of the former proposal that it replaces
    """
    higher = tl.maximum(peak, tl.max(tl.where(inside, values, -3e38)))
    weight, scale = tl.where(inside, tl.exp(values - higher), 0.0), tl.exp(peak - higher)
    others = others * scale + tl.sum(tl.where(aside, 0.0, weight)) + tl.exp(joins - higher)
    return higher, total * scale + tl.sum(weight), others


@triton.jit
def _joined(place, step, inside, mine):  # type: ignore[no-untyped-def]
    """The maximum, sum of exponentials, and that sum without the proposal, of all parts; and the scale of each part.

    place  where the maxima of the parts are; sums and the others follow after `step` each. `mine`: the proposal's part
    """
    peaks = tl.load(place, mask=inside, other=-3e38)
    peak = tl.max(peaks)
    scale = tl.where(inside, tl.exp(peaks - peak), 0.0)
    totals = tl.load(place + step, mask=inside, other=0.0)
    others = tl.where(mine, tl.load(place + 2 * step, mask=inside, other=0.0), totals)
    return peak, tl.sum(totals * scale), tl.sum(others * scale), scale


@triton.jit  # type: ignore[untyped-decorator]
def _write(  # type: ignore[no-untyped-def]
    row, slot, read, best, bad, peak, total, others, moment, second, cross, own, base, w,
    ref_peak, ref_total, ref_others, ref_at, out_peak, out_total, out_others,
    gauge, norm, token_out, scalars_out, count, contrast: tl.constexpr, divergence: tl.constexpr,
):  # fmt: skip
    """The scalars of a position, and the constants of its history."""
    lowest = -1e4
    shift = tl.log(total)
    entropy = shift - moment / total
    tl.store(token_out + row, tl.where(read, best, -1))
    tl.store(scalars_out + row, tl.where(bad > 0, float("nan"), peak))
    usable = (bad == 0) & (peak > lowest) & (peak < float("inf"))
    tl.store(scalars_out + count + row, tl.where(read, tl.where(usable, tl.exp(own - peak - shift), float("nan")), 0.0))
    tl.store(scalars_out + 2 * count + row, tl.where(read, tl.exp(-shift) - tl.exp(second - peak - shift), 0.0))
    tl.store(scalars_out + 3 * count + row, tl.where(read, peak - tl.maximum(second, lowest), 0.0))
    tl.store(scalars_out + 4 * count + row, tl.where(read, entropy, 0.0))
    tl.store(scalars_out + 8 * count + row, tl.where(read, others / total, 0.0))
    if divergence:
        tl.store(scalars_out + 5 * count + row, tl.where(read, -entropy - cross / total, 0.0))
        tl.store(norm + slot, peak + shift)
    if contrast:
        mine = own - base
        past = tl.exp(ref_at - ref_peak) / ref_total
        readout = tl.exp(mine + w * (mine - ref_at) - out_peak) / out_total
        tl.store(scalars_out + 6 * count + row, tl.where(read, past, 0.0))
        tl.store(scalars_out + 7 * count + row, tl.where(read, readout, 0.0))
        tl.store(scalars_out + 9 * count + row, tl.where(read, ref_others / ref_total, 1.0))
        tl.store(scalars_out + 10 * count + row, tl.where(read, out_others / out_total, 1.0))
        tl.store(gauge + slot, peak)


@triton.jit  # type: ignore[untyped-decorator]
def scan_kernel(  # type: ignore[no-untyped-def]
    logits, row_stride, column_stride, rows, slots, first, wanted, proposal,
    reference, reference_stride, gauge, previous, previous_stride, norm,
    token_out, scalars_out, parts, best_parts, count, size, span, w, beta, width,
    picked: tl.constexpr, proposed: tl.constexpr, contrast: tl.constexpr, divergence: tl.constexpr,
    apart: tl.constexpr, splits: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """A part of a position. `scalars_out` float32 [11, count], in the order of `SCALARS`, if there is only one part.

    picked  logits are read at `rows`
    apart   w and beta are tensors with one value per row, which has `width` slots
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    read = tl.load(wanted + row) != 0
    size = tl.where(read, size, 0)  # unwanted positions cost nothing and give neutral values
    slot = tl.load(slots + row)
    begins = tl.load(first + row) != 0
    source = logits + row * row_stride
    if picked:
        source = logits + tl.load(rows + row) * row_stride
    weight_of_contrast, decay = w, beta
    if apart:
        weight_of_contrast, decay = tl.load(w + slot // width), tl.load(beta + slot // width)
    lowest, nothing = -1e4, -3e38  # SUPPRESSED in reference.py; and a finite number below every logit

    peak, total, moment, second = nothing, 0.0, 0.0, nothing
    best = tl.zeros((), dtype=tl.int64)
    bad = tl.zeros((), dtype=tl.int32)
    others, ref_others, out_others = 0.0, 0.0, 0.0
    ref_peak, ref_total, ref_at = nothing, 0.0, nothing
    out_peak, out_total, out_at = nothing, 0.0, nothing
    cross, base, last_norm = 0.0, 0.0, 0.0
    if contrast:
        start_of_row = tl.arange(0, tile)
        head = tl.load(
            source + start_of_row * column_stride, mask=start_of_row < tl.where(begins, size, 0), other=float("-inf")
        ).to(tl.float32)
        guess = tl.max(head)
        base = tl.where(begins, tl.where((guess > lowest) & (guess < -lowest), guess, 0.0), tl.load(gauge + slot))
    if divergence:
        last_norm = tl.load(norm + slot)
    if proposed:
        best = tl.load(proposal + row)

    for start in range(part * span, tl.minimum((part + 1) * span, size), tile):
        column = start + tl.arange(0, tile)
        inside = column < size
        z = tl.load(source + column * column_stride, mask=inside, other=float("-inf")).to(tl.float32)
        bad += tl.sum((inside & (z != z)).to(tl.int32))
        z = tl.maximum(z, lowest)
        seen = tl.where(inside, z, nothing)
        tile_peak = tl.max(seen)
        tile_best = tl.argmax(seen, axis=0, tie_break_left=True)
        tile_second = tl.max(tl.where(column == start + tile_best, nothing, seen))
        second = tl.maximum(tl.minimum(peak, tile_peak), tl.maximum(second, tile_second))

        if proposed:
            leaves, aside = False, column == best
            here = (best >= start) & (best < start + tile)
        else:
            leaves = tile_peak > peak
            aside = column == tl.where(leaves, start + tile_best, -1)
            here = leaves
        higher = tl.maximum(peak, tile_peak)
        scale = tl.exp(peak - higher)
        weight = tl.where(inside, tl.exp(z - higher), 0.0)
        others = others * scale + tl.sum(tl.where(aside, 0.0, weight)) + tl.where(leaves, scale, 0.0)
        moment = scale * (moment + total * (peak - higher)) + tl.sum(tl.where(inside, weight * (z - higher), 0.0))
        total = total * scale + tl.sum(weight)
        if contrast:
            place = reference + slot * reference_stride + column
            now = tl.maximum(z - base, lowest)
            ref = tl.where(begins, now, tl.load(place, mask=inside, other=0.0).to(tl.float32))
            out = now + weight_of_contrast * (now - ref)
            ref_peak, ref_total, ref_others = _rescaled(
                ref_peak, ref_total, ref_others, ref, inside, aside, tl.where(leaves, ref_at, nothing)
            )
            out_peak, out_total, out_others = _rescaled(
                out_peak, out_total, out_others, out, inside, aside, tl.where(leaves, out_at, nothing)
            )
            ref_at = tl.where(here, tl.sum(tl.where(aside, ref, 0.0)), ref_at)
            out_at = tl.where(here, tl.sum(tl.where(aside, out, 0.0)), out_at)
            tl.store(place, decay * ref + (1.0 - decay) * now, mask=inside)
        if divergence:
            place = previous + slot * previous_stride + column
            before = tl.exp(tl.load(place, mask=inside, other=0.0).to(tl.float32) - last_norm)
            before = tl.where(begins, 0.0, before)
            cross = cross * scale + tl.sum(tl.where(inside, weight * tl.log(before + 1e-12), 0.0))
            tl.store(place, z, mask=inside)
        if not proposed:
            best = tl.where(leaves, (start + tile_best).to(tl.int64), best)
        peak = higher

    own = peak
    if proposed:
        own = tl.maximum(tl.load(source + best * column_stride).to(tl.float32), lowest)
    if splits == 1:
        _write(
            row, slot, read, best, bad, peak, total, others, moment, second, cross, own, base, weight_of_contrast,
            ref_peak, ref_total, ref_others, ref_at, out_peak, out_total, out_others,
            gauge, norm, token_out, scalars_out, count, contrast, divergence,
        )  # fmt: skip
    else:  # other programs may still read the constants of the history, so `combine_kernel` writes them
        step = splits * count
        mine = parts + part * count + row
        tl.store(best_parts + part * count + row, best)
        tl.store(mine, peak)
        tl.store(mine + step, total)
        tl.store(mine + 2 * step, others)
        tl.store(mine + 3 * step, moment)
        tl.store(mine + 4 * step, second)
        tl.store(mine + 5 * step, bad.to(tl.float32))
        tl.store(mine + 6 * step, own)
        tl.store(mine + 7 * step, cross)
        if contrast:
            tl.store(mine + 8 * step, base)
            tl.store(mine + 9 * step, ref_at)
            tl.store(mine + 10 * step, ref_peak)
            tl.store(mine + 11 * step, ref_total)
            tl.store(mine + 12 * step, ref_others)
            tl.store(mine + 13 * step, out_peak)
            tl.store(mine + 14 * step, out_total)
            tl.store(mine + 15 * step, out_others)


@triton.jit  # type: ignore[untyped-decorator]
def combine_kernel(  # type: ignore[no-untyped-def]
    slots, wanted, gauge, norm, token_out, scalars_out, parts, best_parts, count, span, w, width,
    proposed: tl.constexpr, contrast: tl.constexpr, divergence: tl.constexpr, apart: tl.constexpr,
    splits: tl.constexpr, room: tl.constexpr,
):  # fmt: skip
    """One position, from its parts. `room` is the smallest power of 2 that holds them."""
    row = tl.program_id(0).to(tl.int64)
    read = tl.load(wanted + row) != 0
    slot = tl.load(slots + row)
    number = tl.arange(0, room)
    inside = number < splits
    place, step = parts + number * count + row, splits * count
    peaks = tl.load(place, mask=inside, other=-3e38)
    if proposed:
        owner = (tl.load(best_parts + row) // span).to(tl.int32)
    else:
        owner = tl.argmax(peaks, axis=0, tie_break_left=True)
    mine = number == owner
    best = tl.load(best_parts + owner * count + row)
    peak, total, others, scale = _joined(place, step, inside, mine)
    moments = tl.load(place + 3 * step, mask=inside, other=0.0)
    totals = tl.load(place + step, mask=inside, other=0.0)
    moment = tl.sum(tl.where(inside, scale * (moments + totals * (peaks - peak)), 0.0))
    top = tl.argmax(peaks, axis=0, tie_break_left=True)
    seconds = tl.load(place + 4 * step, mask=inside, other=-3e38)
    second = tl.max(tl.where(number == top, seconds, peaks))
    bad = tl.sum(tl.load(place + 5 * step, mask=inside, other=0.0))
    own = peak
    if proposed:
        own = tl.load(parts + 6 * step + row)
    cross = tl.sum(scale * tl.load(place + 7 * step, mask=inside, other=0.0))
    base, ref_at, ref_peak, ref_total, ref_others, out_peak, out_total, out_others = (
        0.0,
        0.0,
        0.0,
        1.0,
        0.0,
        0.0,
        1.0,
        0.0,
    )
    weight_of_contrast = w
    if contrast:
        if apart:
            weight_of_contrast = tl.load(w + slot // width)
        base = tl.load(parts + 8 * step + row)
        ref_at = tl.load(parts + 9 * step + owner * count + row)
        ref_peak, ref_total, ref_others, _ = _joined(place + 10 * step, step, inside, mine)
        out_peak, out_total, out_others, _ = _joined(place + 13 * step, step, inside, mine)
    _write(
        row, slot, read, best, bad, peak, total, others, moment, second, cross, own, base, weight_of_contrast,
        ref_peak, ref_total, ref_others, ref_at, out_peak, out_total, out_others,
        gauge, norm, token_out, scalars_out, count, contrast, divergence,
    )  # fmt: skip


def scan(
    logits: Tensor, rows: Tensor | None, slots: Tensor, first: Tensor, wanted: Tensor, proposal: Tensor | None,
    needs: Needs, memory: Memory,
) -> dict[str, Tensor]:  # fmt: skip
    """token, peak, confidence and everything in `needs`, [P] each; updates the history of wanted positions.

    rows  int64 [P], which of the logits [N, V] belong to the positions; None: all of them, in order
    """
    count, size = len(slots), logits.shape[1]
    contrast = needs.contrast
    reference = memory.store("reference", logits) if contrast is not None else logits
    previous = memory.store("previous", logits) if "kl" in needs else logits
    token = torch.empty(count, dtype=torch.int64, device=logits.device)
    scalars = torch.empty(len(SCALARS), count, device=logits.device)
    tile = min(TILE, triton.next_power_of_2(size))
    splits, span = split(count, size, tile)
    parts, best_parts = scalars, token
    if splits > 1:
        parts = torch.empty(PARTS, splits, count, device=logits.device)
        best_parts = torch.empty(splits, count, dtype=torch.int64, device=logits.device)
    w, beta = (contrast.w, contrast.beta) if contrast else (0.0, 0.0)
    measured = {
        "proposed": proposal is not None, "contrast": contrast is not None, "divergence": "kl" in needs,
        "apart": isinstance(w, torch.Tensor), "splits": splits,
    }  # fmt: skip
    with current_device(logits):
        scan_kernel[(count, splits)](
            logits, logits.stride(0), logits.stride(1), slots if rows is None else rows, slots, first.view(torch.int8),
            wanted.view(torch.int8), slots if proposal is None else proposal,
            reference, reference.stride(0), memory.gauge, previous, previous.stride(0), memory.norm,
            token, scalars, parts, best_parts, count, size, span, w, beta, memory.width,
            picked=rows is not None, tile=tile, **measured, num_warps=WARPS,
        )  # fmt: skip
        if splits > 1:
            combine_kernel[(count,)](
                slots, wanted.view(torch.int8), memory.gauge, memory.norm, token, scalars, parts, best_parts, count,
                span, w, memory.width, room=triton.next_power_of_2(splits), **measured, num_warps=1,
            )  # fmt: skip
    return by_name(token, scalars, needs)
