"""Attention over rows of different lengths, which PyTorch has for CUDA only; computed here row by row."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence

TYPES = {torch.bfloat16, torch.float16}


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, key_starts: Tensor, longest: int, reach: int,
    causal: bool = False, scale: float | None = None, window: Sequence[int] = (-1, -1), grouped: bool = False,
    used: Tensor | None = None, *others: Any,
) -> Tensor:  # fmt: skip
    """[T, H, D]. Row i has the queries from starts[i] to starts[i + 1], and used[i] keys from key_starts[i] on."""
    if causal or tuple(window) != (-1, -1) or scale is not None or any(other is not None for other in others):
        raise NotImplementedError("The simulated device supports only plain attention over rows of different lengths.")
    if query.dtype not in TYPES:
        raise RuntimeError(f"Attention over rows of different lengths must be in 16 bits, got {query.dtype}.")
    if {starts.dtype, key_starts.dtype} != {torch.int32} or (used is not None and used.dtype != torch.int32):
        raise RuntimeError("Where rows begin, and how many of their keys count, must be int32.")
    made, edges, firsts = [], starts.tolist(), key_starts.tolist()
    counts = used.tolist() if used is not None else key_starts.diff().tolist()
    for row, (start, stop) in enumerate(itertools.pairwise(edges)):
        if stop - start > longest or counts[row] > reach:
            raise RuntimeError(f"Row {row} is longer than the longest that was announced.")
        here = slice(firsts[row], firsts[row] + counts[row])
        q, k, v = (x.transpose(0, 1)[None] for x in (query[start:stop], key[here], value[here]))
        made.append(F.scaled_dot_product_attention(q, k, v, enable_gqa=grouped)[0].transpose(0, 1))
    return torch.cat(made)
