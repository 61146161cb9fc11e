"""The scan on a CPU in C: one pass over the vocabulary measures everything. `compiled.py` compiles `native.c`.

A position depends on nothing but itself. So threads share the positions, and results do not depend on their number.
"""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

from tacg.scan.compiled import kernel
from tacg.scan.fused import SCALARS, by_name

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.scan.memory import Memory
    from tacg.types import Needs

WORTHWHILE = 1 << 19  # logits that keep a thread busy for long enough to be worth waking it, about 1 ms


def scan_boards(
    logits: Tensor, rows: Tensor | None, places: Tensor | None, slots: Tensor, first: Tensor, observed: Tensor,
    proposal: Tensor | None, needs: Needs, memory: Memory,
) -> tuple[dict[str, Tensor], bool]:  # fmt: skip
    """token, peak, confidence and everything in `needs`, [R, L] each, and whether all logits are usable.

    Also updates the history of the observed positions. For rows, places and slots see `StepScan`; first and observed
    are bool [R, L].
    """
    library, _ = kernel()
    assert library is not None
    run = library.tacg_scan
    if logits.stride(1) != 1 or logits.dtype not in (torch.float32, torch.bfloat16):
        logits = logits.float().contiguous()
    count, size, contrast = len(slots), logits.shape[1], needs.contrast
    detailed = "entropy" in needs or "kl" in needs
    reference = None if contrast is None else memory.store("reference", logits)
    previous = memory.store("previous", logits) if "kl" in needs else None
    w, beta = (contrast.w, contrast.beta) if contrast else (0.0, 0.0)
    token, scalars = torch.empty(observed.shape, dtype=torch.int64), torch.empty(len(SCALARS), *observed.shape)
    given = [each if each is None else each.contiguous() for each in (places, rows, slots, first, observed, proposal)]
    arguments = (
        logits.data_ptr(), logits.stride(0), logits.dtype == torch.bfloat16, detailed, size,
        *(each if each is None else each.data_ptr() for each in (*given, reference, previous)),
        memory.norm.data_ptr(), w, beta, token.data_ptr(), scalars.data_ptr(), observed.numel(),
    )  # fmt: skip
    parts = min(count, count * size // WORTHWHILE, torch.get_num_threads())
    if parts < 2:
        unusable = run(*arguments, True, 0, count)
    else:
        library.tacg_blank(token.data_ptr(), scalars.data_ptr(), observed.numel())
        edges = [count * part // parts for part in range(parts + 1)]
        helpers = [
            threads(parts - 1).submit(run, *arguments, False, *edges[part : part + 2]) for part in range(1, parts)
        ]
        unusable = run(*arguments, False, *edges[:2]) + sum(helper.result() for helper in helpers)
    return by_name(token, scalars, needs), not unusable


@functools.cache
def threads(count: int) -> ThreadPoolExecutor:
    """Threads that native kernels share their work with."""
    return ThreadPoolExecutor(count, thread_name_prefix="tacg-native")


if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=threads.cache_clear)
