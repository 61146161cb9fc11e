"""Experts: many feed-forwards, of which each token passes through a few."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacg.models.layers import STEADY_ROWS
from tacg.models.native_experts import is_native, mix
from tacg.models.products import SideBySide, gated, is_packed, linear
from tacg.models.quantized import UNPACKED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.models.quantized import PackedWeight

CROWDED = 64  # tokens per expert beyond which a CPU takes them one by one: what all of them make leaves its cache


class Experts(SideBySide):
    """E feed-forwards with their weights stacked: gate_proj and up_proj [E, I, D], down_proj [E, D, I]."""

    together = (("gate_proj", "up_proj"),)
    numbers: Tensor

    def __init__(self, count: int, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Parameter(torch.empty(count, inner, width))
        self.up_proj = nn.Parameter(torch.empty(count, inner, width))
        self.down_proj = nn.Parameter(torch.empty(count, width, inner))

    def forward(self, x: Tensor, chosen: Tensor, weight: Tensor) -> Tensor:
        """x [N, D], experts chosen int64 [N, K] with their weights float32 [N, K] -> [N, D], summed in float32.

        Tokens are sorted by expert, and all experts compute in one call; on a CPU one after the other if they have
        many tokens each. On a GPU nothing is read back, and the sum stays in float32: see `plus`. A CPU with a C
        compiler has a kernel for all of this.
        """
        if is_native(x, (self.gate_proj, self.up_proj, self.down_proj)):
            return mix(x, chosen, weight, self.gate_proj, self.up_proj, self.down_proj)
        crowded = x.device.type == "cpu" and chosen.numel() > CROWDED * len(self.gate_proj)
        # Only in float32 both ways round alike; otherwise a row's bits would depend on how many others there are.
        if (crowded and x.dtype == torch.float32) or not self._aligned(x):
            return self.one_by_one(x, chosen, weight)
        experts, order = chosen.flatten().sort(stable=True)
        numbers = torch.arange(len(self.gate_proj)) if x.device.type == "cpu" else self.numbers
        ends = torch.searchsorted(experts, numbers, right=True, out_int32=True)
        here = x[order // chosen.shape[1]]
        if x.device.type != "cpu":
            made = torch.empty_like(here).index_copy_(0, order, self._grouped(here, ends))
            return torch.bmm(weight[:, None], made.view(*chosen.shape, -1).float()).squeeze(1)
        place, ends = _filled_up(experts, ends)
        made = self._grouped(here.new_zeros(int(ends[-1]), x.shape[1]).index_copy_(0, place, here), ends)[place]
        mixed = torch.zeros(x.shape, dtype=torch.float32)
        return mixed.index_add_(0, order // chosen.shape[1], made * weight.flatten()[order, None]).to(x.dtype)

    def settle(self) -> None:
        """The numbers of the experts, int64 [E]."""
        self.numbers = torch.arange(len(self.gate_proj), device=self.gate_proj.device)

    def _aligned(self, x: Tensor) -> bool:
        """Whether PyTorch has a grouped product (from 2.10 on), and for these sizes and weights.

        Packed weights are unpacked for it, also of experts without tokens, so a CPU does not use it for them.
        """
        fits = not any(size * x.element_size() % 16 for size in self.down_proj.shape[1:])
        return hasattr(F, "grouped_mm") and fits and not (x.device.type == "cpu" and is_packed(self.down_proj))

    def _grouped(self, x: Tensor, ends: Tensor) -> Tensor:
        """x [P, D], in groups that end before `ends` int32 [E] -> [P, D]."""
        if is_packed(self.down_proj):
            return self._in_parts(x, ends)
        tables = [*self.joint.values()] or [self.gate_proj, self.up_proj]
        return _fed(x, ends, tables, self.down_proj)

    def _in_parts(self, x: Tensor, ends: Tensor) -> Tensor:
        """The same with packed weights: as many experts at a time as may be unpacked.

        How many tokens each of them gets is known on the device only, so every shape is that of all tokens: those of
        the part come first, and what is made of the others is thrown away.
        """
        count, inner, width = self.gate_proj.shape
        step = max(1, UNPACKED // (2 * inner * width))
        starts, ruler = F.pad(ends, (1, 0)), torch.arange(len(x), device=x.device)
        made = x.new_empty(len(x) + 1, width)
        for first in range(0, count, step):
            stop = min(first + step, count)
            place = ruler + starts[first]
            gate, up, down = (
                cast("PackedWeight", table).unpacked(first, stop, x.dtype)
                for table in (self.gate_proj, self.up_proj, self.down_proj)
            )
            part = _fed(x[place.clamp(max=len(x) - 1)], ends[first:stop] - starts[first], [gate, up], down)
            made.index_copy_(0, torch.where(place < starts[stop], place, len(x)), part)
        return made[:-1]

    def one_by_one(self, x: Tensor, chosen: Tensor, weight: Tensor) -> Tensor:
        """Like `forward`, one expert at a time: the reference for tests, and the way without a grouped product.

        It reads how many tokens each expert has, so a GPU has to wait; there it is used only for sizes that do not fit.

        Small groups of tokens are padded, so that rounding does not depend on their number.
        """
        order = chosen.flatten().argsort(stable=True)
        token = order // chosen.shape[1]
        counts = torch.bincount(chosen.flatten(), minlength=len(self.gate_proj)).tolist()
        mixed = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        start = 0
        for expert, count in enumerate(counts):
            if count:
                mine, slots = token[start : start + count], order[start : start + count]
                here = F.pad(x[mine], (0, 0, 0, max(0, STEADY_ROWS - count)))
                inner = F.silu(linear(here, self.gate_proj[expert])) * linear(here, self.up_proj[expert])
                made = linear(inner, self.down_proj[expert])[:count].float()
                mixed.index_add_(0, mine, made * weight.flatten()[slots, None])
                start += count
        return mixed.to(x.dtype)


def _fed(x: Tensor, ends: Tensor, tables: Sequence[Tensor], down: Tensor) -> Tensor:
    """x [P, D], in groups that end before `ends` int32 [E], through gate and up and then down -> [P, D]."""
    inner = gated([F.grouped_mm(x, table.mT, offs=ends) for table in tables])
    return F.grouped_mm(inner, down.mT, offs=ends)


def _filled_up(groups: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Pad groups to at least `STEADY_ROWS` members: where each member goes, int64 [P], and where groups end.

    groups  int64 [P], of each member, ascending; group g ends before `ends` int32 [E]
    """
    counts = ends.diff(prepend=ends.new_zeros(1))
    missing = (STEADY_ROWS - counts).clamp(min=0) * (counts > 0)
    shift = missing.cumsum(0, dtype=torch.int32)
    return torch.arange(len(groups)) + (shift - missing)[groups], ends + shift
