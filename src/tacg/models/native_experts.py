"""Experts on a CPU in C: weights are read once, in the type that they are stored in. See `native_experts.c`.

A token's result depends on nothing but itself. So it does not matter how many others there are, or how many threads.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacg.models.products import is_widened
from tacg.scan.compiled import library
from tacg.scan.native import threads

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK, LANES = 96, 16  # as in native_experts.c, which may have fewer lanes
WORTHWHILE = 1 << 22  # multiplications that keep a thread busy for long enough to be worth waking it, about 1 ms


@functools.cache
def kernel() -> tuple[ctypes.CDLL | None, str]:
    """native_experts.c, compiled, and by what; or None, and why."""
    found, how = library(Path(__file__).with_name("native_experts.c"))
    if found is not None:
        address, number, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        found.tacg_gate_up.restype = found.tacg_down.restype = None
        found.tacg_gate_up.argtypes = [*[address] * 3, *[number] * 3, flag, *[address] * 4, number, number]
        found.tacg_down.argtypes = [*[address] * 2, *[number] * 3, flag, *[address] * 4, number, number]
    return found, how


def is_native(x: Tensor, tables: Sequence[object]) -> bool:
    """Whether the kernel computes experts with these tables for x.

    That is in float32, and in bfloat16 on a CPU that has no instructions for it. Gradients need PyTorch's operations.
    """
    if x.device.type != "cpu" or not (x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and is_widened(x))):
        return False
    fit = all(isinstance(each, Tensor) and each.dtype == x.dtype and each.is_contiguous() for each in tables)
    learns = torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in (x, *tables))
    return fit and not learns and kernel()[0] is not None


def mix(x: Tensor, chosen: Tensor, weight: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """`Experts.forward` for tensors that `is_native` accepts."""
    found, _ = kernel()
    assert found is not None
    count, inner, width = gate.shape
    experts, order = chosen.flatten().sort(stable=True)
    token, ends = order // chosen.shape[1], torch.bincount(experts, minlength=count).cumsum(0)
    scale, wide = weight.flatten()[order].float(), x.float().contiguous()
    worthwhile = len(order) * 3 * inner * width // WORTHWHILE
    parts = max(1, min(worthwhile, torch.get_num_threads()))
    columns = torch.empty(parts, BLOCK * width)
    hidden = torch.empty((len(order) + min(count, len(order)) * (LANES - 1)) * inner)  # no group ends within a vector
    made = torch.zeros(wide.shape)
    sizes, sorted_by = (count, inner, width, x.dtype == torch.bfloat16), (token.data_ptr(), ends.data_ptr())

    def gate_up(part: int) -> None:
        tables = wide.data_ptr(), gate.data_ptr(), up.data_ptr()
        found.tacg_gate_up(*tables, *sizes, *sorted_by, columns[part].data_ptr(), hidden.data_ptr(), part, parts)

    def back(part: int) -> None:
        tables = hidden.data_ptr(), down.data_ptr()
        found.tacg_down(*tables, *sizes, *sorted_by, scale.data_ptr(), made.data_ptr(), part, parts)

    for step in (gate_up, back):
        others = [threads(parts - 1).submit(step, part) for part in range(1, parts)]
        step(0)
        for other in others:
            other.result()
    return made.to(x.dtype)
