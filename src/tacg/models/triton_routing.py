"""The choice of experts on a GPU, in one kernel instead of fifteen. A program handles one token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tacg.devices import current_device


@triton.jit  # type: ignore[untyped-decorator]
def route_kernel(  # type: ignore[no-untyped-def]
    logits, row_stride, bias, chosen_out, weight_out, scaling,
    experts: tl.constexpr, groups: tl.constexpr, kept_groups: tl.constexpr, count: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """`experts` and `groups` are powers of 2; `width` is the smallest that holds `count`. Ties go to the first."""
    row = tl.program_id(0).to(tl.int64)
    number, nothing = tl.arange(0, experts), float("-inf")
    score = tl.sigmoid(tl.load(logits + row * row_stride + number).to(tl.float32))
    wish = score + tl.load(bias + number).to(tl.float32)
    if kept_groups < groups:
        size: tl.constexpr = experts // groups
        group = tl.reshape(wish, (groups, size))
        best = tl.max(group, axis=1)
        if size > 1:
            place = tl.argmax(group, axis=1)
            others = tl.where(tl.arange(0, size)[None, :] == place[:, None], nothing, group)
            best += tl.max(others, axis=1)
        which = tl.arange(0, groups)
        kept = which < 0
        for _ in tl.static_range(kept_groups):
            first = tl.argmax(best, axis=0)
            kept = kept | (which == first)
            best = tl.where(which == first, nothing, best)
        wish = tl.reshape(tl.where(kept[:, None], group, nothing), (experts,))
    slot = tl.arange(0, width)
    chosen, weight = tl.zeros((width,), dtype=tl.int64), tl.zeros((width,), dtype=tl.float32)
    for turn in tl.static_range(count):
        first = tl.argmax(wish, axis=0)
        chosen = tl.where(slot == turn, first.to(tl.int64), chosen)
        weight = tl.where(slot == turn, tl.sum(tl.where(number == first, score, 0.0)), weight)
        wish = tl.where(number == first, nothing, wish)
    weight = weight / (tl.sum(weight) + 1e-20) * scaling
    tl.store(chosen_out + row * count + slot, chosen, mask=slot < count)
    tl.store(weight_out + row * count + slot, weight, mask=slot < count)


def route(
    logits: Tensor, bias: Tensor, groups: int, kept_groups: int, count: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """See `tacg.models.routing`."""
    rows, experts = logits.shape
    chosen = torch.empty(rows, count, dtype=torch.int64, device=logits.device)
    weight = torch.empty(rows, count, dtype=torch.float32, device=logits.device)
    with current_device(logits):
        route_kernel[(rows,)](
            logits, logits.stride(0), bias, chosen, weight, scaling, experts=experts, groups=groups,
            kept_groups=kept_groups, count=count, width=triton.next_power_of_2(count), num_warps=1,
        )  # fmt: skip
    return chosen, weight
