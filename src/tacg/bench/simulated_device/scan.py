"""The Triton kernel of the scan where there is no GPU: the same outputs from the readable scan, for one launch.

Only the kernel itself is replaced. What `tacg.scan.triton` does around it runs, and is counted, as it stands.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from tacg.scan.reference import contrast as contrasted
from tacg.scan.reference import follow, lowest, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    Launch = Callable[[Callable[..., None], dict[str, Any]], None]


@contextlib.contextmanager
def emulated_scan(launch: Launch) -> Iterator[None]:
    """Hand every launch of the kernel to `launch`: what computes the same on the CPU, and the arguments by name.

    Without Triton there is nothing to replace: the engine then takes the readable scan on a device by itself.
    """
    try:
        from tacg.scan import triton
    except ImportError:
        yield
        return
    names = list(inspect.signature(triton.scan_kernel.fn).parameters)

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *values, **named: launch(scan_kernel, dict(zip(names, values, strict=False)) | named)

    with mock.patch.object(triton, "scan_kernel", Kernel()):
        yield


def scan_kernel(
    *, logits: Tensor, slots: Tensor, first: Tensor, wanted: Tensor, proposal: Tensor, reference: Tensor,
    previous: Tensor, token_out: Tensor, scalars_out: Tensor, w: float, beta: float, proposed: bool, contrast: bool,
    divergence: bool, **_: Any,
) -> None:  # fmt: skip
    """What the kernel of this name leaves in `token_out`, `scalars_out` and the history (see `tacg.scan.triton`)."""
    begins = first.bool()
    from tacg.scan.triton import SCALARS

    names = frozenset({"margin", "gap", "entropy", "others"} | ({"kl"} if divergence else set()))
    found = read(
        logits, None, proposal if proposed else None, names, previous if divergence else None, slots, begins
    )  # fmt: skip
    if contrast:
        rows = torch.arange(len(slots))
        for name, weight in (("reference", 1.0), ("readout", -w)):
            there = 1.0 - contrasted(logits, rows, reference, slots, found["token"], weight, fine=True)
            found[f"{name}_others"] = torch.where(begins, found["others"], there.to(found["others"].dtype))
            found[name] = 1.0 - found[f"{name}_others"]
        follow(reference, slots, logits, rows, found["peak"], begins, beta)
    usable = (found["peak"] > lowest(logits.dtype)) & (found["peak"] < torch.inf)
    found["confidence"] = found["confidence"].masked_fill(~usable, torch.nan)
    read_here = wanted.bool()
    token_out.copy_(found["token"].masked_fill(~read_here, -1))
    for name, scalars in zip(SCALARS, scalars_out, strict=True):
        if name in found:
            scalars.copy_(found[name].masked_fill(~read_here, 0.0))
