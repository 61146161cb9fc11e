"""Triton's kernels without a GPU: readable code with the same outputs, counted as one launch each.

Only the kernels themselves are replaced. The code around them runs, and is counted, unchanged.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from tacg.engine.draws import PROPOSAL, sample, uniform
from tacg.models.routing import step_by_step
from tacg.scan.reference import contrast as contrasted
from tacg.scan.reference import follow, lowest, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    Launch = Callable[[Callable[..., None], dict[str, Any]], None]


@contextlib.contextmanager
def emulated_kernels(launch: Launch) -> Iterator[None]:
    """Pass every launch of a kernel to `launch`: the function that computes the same on the CPU, and its arguments.

    Without Triton there is nothing to replace: then the code without kernels runs on a device, too.
    """
    with contextlib.ExitStack() as patches:
        for place, stand_in in (
            ("tacg.scan.triton", scan_kernel), ("tacg.scan.triton", combine_kernel),
            ("tacg.engine.triton_draws", weigh_kernel), ("tacg.engine.triton_draws", draw_kernel),
            ("tacg.models.triton_routing", route_kernel),
        ):  # fmt: skip
            with contextlib.suppress(ImportError):
                module = importlib.import_module(place)
                kernel = _Kernel(getattr(module, stand_in.__name__), stand_in, launch)
                patches.enter_context(mock.patch.object(module, stand_in.__name__, kernel))
        yield


class _Kernel:
    """Called as Triton's kernels are: with a grid in brackets, then the arguments."""

    def __init__(self, kernel: Any, stand_in: Callable[..., None], launch: Launch) -> None:
        self.names = list(inspect.signature(kernel.fn).parameters)
        self.stand_in, self.launch = stand_in, launch

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *values, **named: self.launch(self.stand_in, dict(zip(self.names, values, strict=False)) | named)


def route_kernel(
    *, logits: Tensor, bias: Tensor, chosen_out: Tensor, weight_out: Tensor, scaling: float, groups: int,
    kept_groups: int, count: int, **_: Any,
) -> None:  # fmt: skip
    """What the kernel of this name leaves in `chosen_out` and `weight_out`."""
    chosen, weight = step_by_step(logits, bias, groups, kept_groups, count, scaling)
    chosen_out.copy_(chosen)
    weight_out.copy_(weight)


def weigh_kernel(**_: Any) -> None:
    """Nothing: the emulated `draw_kernel` does both."""


def draw_kernel(
    *, logits: Tensor, places: Tensor, temperature: Tensor, seed: Tensor, block: Tensor, step: Tensor,
    token_out: Tensor, length: int, everywhere: bool, **_: Any,
) -> None:  # fmt: skip
    """What the kernel of this name leaves in `token_out` (see `tacg.engine.triton_draws`)."""
    draws = uniform(seed, block * (1 << 32) + step, length, PROPOSAL).view(-1, 1)
    heat = temperature[:, None].expand(-1, length).reshape(-1)
    here = slice(None) if everywhere else places
    token_out.copy_(sample(logits, heat[here], draws[here]).squeeze(1))


def combine_kernel(**_: Any) -> None:
    """Nothing: the emulated `scan_kernel` reads whole rows."""


def scan_kernel(
    *, logits: Tensor, rows: Tensor, slots: Tensor, first: Tensor, wanted: Tensor, proposal: Tensor, reference: Tensor,
    previous: Tensor, token_out: Tensor, scalars_out: Tensor, w: Any, beta: Any, width: int, picked: bool,
    proposed: bool, contrast: bool, divergence: bool, apart: bool, **_: Any,
) -> None:  # fmt: skip
    """What the kernel of this name leaves in `token_out`, `scalars_out` and the history (see `tacg.scan.triton`)."""
    begins = first.bool()
    from tacg.scan.fused import SCALARS

    logits = logits[rows] if picked else logits
    if apart:
        w, beta = (each.view(-1, 1)[slots // width] for each in (w, beta))
    names = frozenset({"margin", "gap", "entropy", "others"} | ({"kl"} if divergence else set()))
    found = read(
        logits, None, proposal if proposed else None, names, previous if divergence else None, slots, begins
    )  # fmt: skip
    if contrast:
        every = torch.arange(len(slots))
        for name, weight in (("reference", 1.0), ("readout", -w)):
            there = 1.0 - contrasted(logits, every, reference, slots, found["token"], weight, fine=True)
            found[f"{name}_others"] = torch.where(begins, found["others"], there.to(found["others"].dtype))
            found[name] = 1.0 - found[f"{name}_others"]
        follow(reference, slots, logits, every, found["peak"], begins, beta)
    usable = (found["peak"] > lowest(logits.dtype)) & (found["peak"] < torch.inf)
    found["confidence"] = found["confidence"].masked_fill(~usable, torch.nan)
    read_here = wanted.bool()
    token_out.copy_(found["token"].masked_fill(~read_here, -1))
    for name, scalars in zip(SCALARS, scalars_out, strict=True):
        if name in found:
            scalars.copy_(found[name].masked_fill(~read_here, 0.0))
