"""The scan on a GPU, in one kernel: the logits are read once, the reference is read and written once.

A program handles one position and walks over the vocabulary in tiles, keeping running maxima and sums (online softmax)
of the posterior, the reference and the readout. Everything is measured, because on a GPU arithmetic is free and memory
traffic is not. The stored data differ from the CPU's in one detail: the largest logit is known only at the end of the
walk, so the EMA is shifted by that of the previous step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from tacg.scan.reference import from_others
from tacg.types import CONTRASTED

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.scan.memory import Memory
    from tacg.types import Needs

SCALARS = (
    "peak", "confidence", "margin", "gap", "entropy", "kl", "reference", "readout", "others", "reference_others",
    "readout_others",
)  # fmt: skip
TILE = 2048
WARPS = 8


@triton.jit
def _rescaled(peak, total, others, values, inside, aside, joins):  # type: ignore[no-untyped-def]
    """Update the running maximum, the running sum of exponentials, and that sum without the proposal, with a tile.

    aside  marks the proposal if it is in this tile; `joins`: the value of the former proposal that it replaces
    """
    higher = tl.maximum(peak, tl.max(tl.where(inside, values, -3e38)))
    weight, scale = tl.where(inside, tl.exp(values - higher), 0.0), tl.exp(peak - higher)
    others = others * scale + tl.sum(tl.where(aside, 0.0, weight)) + tl.exp(joins - higher)
    return higher, total * scale + tl.sum(weight), others


@triton.jit  # type: ignore[untyped-decorator]
def scan_kernel(  # type: ignore[no-untyped-def]
    logits, row_stride, column_stride, slots, first, wanted, proposal,
    reference, reference_stride, gauge, previous, previous_stride, norm,
    token_out, scalars_out, count, size, w, beta,
    proposed: tl.constexpr, contrast: tl.constexpr, divergence: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """One position. `scalars_out` float32 [11, count], in the order of `SCALARS`."""
    row = tl.program_id(0).to(tl.int64)
    read = tl.load(wanted + row) != 0
    size = tl.where(read, size, 0)  # unwanted positions cost nothing and give neutral values
    slot = tl.load(slots + row)
    begins = tl.load(first + row) != 0
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
            logits + row * row_stride + start_of_row * column_stride, mask=start_of_row < size, other=float("-inf")
        ).to(tl.float32)
        guess = tl.max(head)
        base = tl.where(begins, tl.where((guess > lowest) & (guess < -lowest), guess, 0.0), tl.load(gauge + slot))
    if divergence:
        last_norm = tl.load(norm + slot)
    if proposed:
        best = tl.load(proposal + row)
        chosen = tl.maximum(tl.load(logits + row * row_stride + best * column_stride).to(tl.float32), lowest)
        if contrast:
            ref_at = tl.where(begins, chosen - base, tl.load(reference + slot * reference_stride + best).to(tl.float32))

    for start in range(0, size, tile):
        column = start + tl.arange(0, tile)
        inside = column < size
        z = tl.load(logits + row * row_stride + column * column_stride, mask=inside, other=float("-inf")).to(tl.float32)
        bad += tl.sum((inside & (z != z)).to(tl.int32))
        z = tl.maximum(z, lowest)
        seen = tl.where(inside, z, nothing)
        tile_peak = tl.max(seen)
        tile_best = tl.argmax(seen, axis=0, tie_break_left=True)
        tile_second = tl.max(tl.where(column == start + tile_best, nothing, seen))
        second = tl.maximum(tl.minimum(peak, tile_peak), tl.maximum(second, tile_second))

        if proposed:
            leaves, aside = False, column == best
        else:
            leaves = tile_peak > peak
            aside = column == tl.where(leaves, start + tile_best, -1)
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
            out = now + w * (now - ref)
            ref_peak, ref_total, ref_others = _rescaled(
                ref_peak, ref_total, ref_others, ref, inside, aside, tl.where(leaves, ref_at, nothing)
            )
            out_peak, out_total, out_others = _rescaled(
                out_peak, out_total, out_others, out, inside, aside, tl.where(leaves, out_at, nothing)
            )
            if not proposed:
                ref_at = tl.where(leaves, tl.sum(tl.where(aside, ref, 0.0)), ref_at)
                out_at = tl.where(leaves, tl.sum(tl.where(aside, out, 0.0)), out_at)
            tl.store(place, beta * ref + (1.0 - beta) * now, mask=inside)
        if divergence:
            place = previous + slot * previous_stride + column
            before = tl.exp(tl.load(place, mask=inside, other=0.0).to(tl.float32) - last_norm)
            before = tl.where(begins, 0.0, before)
            cross = cross * scale + tl.sum(tl.where(inside, weight * tl.log(before + 1e-12), 0.0))
            tl.store(place, z, mask=inside)
        if not proposed:
            best = tl.where(leaves, (start + tile_best).to(tl.int64), best)
        peak = higher

    shift = tl.log(total)
    entropy = shift - moment / total
    own = peak
    if proposed:
        own = chosen
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


def scan(
    logits: Tensor, slots: Tensor, first: Tensor, wanted: Tensor, proposal: Tensor | None, needs: Needs, memory: Memory
) -> dict[str, Tensor]:
    """token, peak, confidence and everything in `needs`, [P] each; updates the history of wanted positions."""
    count, size = logits.shape
    contrast = needs.contrast
    reference = memory.store("reference", logits) if contrast is not None else logits
    previous = memory.store("previous", logits) if "kl" in needs else logits
    token = torch.empty(count, dtype=torch.int64, device=logits.device)
    scalars = torch.empty(len(SCALARS), count, device=logits.device)
    scan_kernel[(count,)](
        logits, logits.stride(0), logits.stride(1), slots, first.view(torch.int8), wanted.view(torch.int8),
        slots if proposal is None else proposal,
        reference, reference.stride(0), memory.gauge, previous, previous.stride(0), memory.norm,
        token, scalars, count, size, contrast.w if contrast else 0.0, contrast.beta if contrast else 0.0,
        proposed=proposal is not None, contrast=contrast is not None, divergence="kl" in needs,
        tile=min(TILE, triton.next_power_of_2(size)), num_warps=WARPS,
    )  # fmt: skip
    found = dict(zip(SCALARS, scalars, strict=True))
    if contrast is not None and contrast.fine:
        found |= {name: from_others(found[f"{name}_others"]) for name in CONTRASTED}
    asked = needs.names | {"peak", "confidence"}
    return {"token": token} | {name: values for name, values in found.items() if name in asked}
