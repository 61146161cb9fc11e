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
def kernel(*flags: str) -> tuple[ctypes.CDLL | None, str]:
    """native_experts.c, compiled (with these flags as well), and by what; or None, and why."""
    found, how = library(Path(__file__).with_name("native_experts.c"), *flags)
    if found is not None:
        address, number, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        found.tacg_gate_up.restype = found.tacg_down.restype = None
        found.tacg_gate_up.argtypes = [*[address] * 3, *[number] * 3, flag, *[address] * 4, number, number]
        found.tacg_down.argtypes = [*[address] * 2, *[number] * 3, flag, *[address] * 4, number, number]
    return found, how


def is_native(x: Tensor, tables: Sequence[object]) -> bool:
    """Whether the kernel computes experts with these tables for x.

    That is in float32, and in bfloat16 if the kernel has instructions for it or PyTorch has none. Gradients need
    PyTorch's operations.
    """
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16) or kernel()[0] is None:
        return False
    if not all(isinstance(each, Tensor) and each.dtype == x.dtype and each.is_contiguous() for each in tables):
        return False
    if torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in (x, *tables)):
        return False
    if x.dtype == torch.bfloat16 and multiplies_pairs():
        return not any(each.shape[-1] % 2 for each in tables if isinstance(each, Tensor))
    return x.dtype == torch.float32 or is_widened(x)


def multiplies_pairs() -> bool:
    """Whether the kernel multiplies pairs of bfloat16, without widening them."""
    found, _ = kernel()
    return found is not None and bool(found.tacg_pairs())


def mix(x: Tensor, chosen: Tensor, weight: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """`Experts.forward` for tensors that `is_native` accepts."""
    found, _ = kernel()
    assert found is not None
    count, inner, width = gate.shape
    experts, order = chosen.flatten().sort(stable=True)
    token, ends = order // chosen.shape[1], torch.bincount(experts, minlength=count).cumsum(0)
    scale = weight.flatten()[order].float()
    narrow = x.dtype == torch.bfloat16
    here = (x if multiplies_pairs() else x.float()).contiguous()
    worthwhile = len(order) * 3 * inner * width // WORTHWHILE
    parts = max(1, min(worthwhile, torch.get_num_threads()))
    columns = torch.empty(parts, BLOCK * width)
    hidden = torch.empty((len(order) + min(count, len(order)) * (LANES - 1)) * inner)  # no group ends within a vector
    made = torch.zeros(x.shape)
    sizes, sorted_by = (count, inner, width, narrow), (token.data_ptr(), ends.data_ptr())

    def gate_up(part: int) -> None:
        tables = here.data_ptr(), gate.data_ptr(), up.data_ptr()
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
