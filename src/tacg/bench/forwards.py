"""What a forward costs on a GPU, counted on a simulated one: real depth and numbers of experts, tiny width.

A steady forward is counted: one block of each row, with the rest in the cache, and spans that occurred before. Prompts
differ in length. The type is bfloat16, which PyTorch's kernels for experts and for rows of unequal length need.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch

from tacg.bench.simulated_device import SimulatedDevice, Tally
from tacg.cache import Store
from tacg.models.base import Span, Spans
from tacg.models.tiny import random_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from tacg.records.rows import ResultRow

BLOCK = 32
LLADA = {"n_layers": 32}
LLADA2_MINI = {
    "num_hidden_layers": 20, "num_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Forward:
    """Rows of a model whose blocks are computed together. `cache` is dual or block; with none, whole rows are."""

    model: str
    family: str
    layers: int
    cache: str
    rows: int
    shape: dict[str, int] = field(hash=False)


FORWARDS = (
    Forward("LLaDA-8B", "llada", 32, "none", 8, LLADA),
    Forward("LLaDA-8B", "llada", 32, "dual", 1, LLADA),
    Forward("LLaDA-8B", "llada", 32, "dual", 32, LLADA),
    Forward("LLaDA2.0-mini", "llada2", 20, "block", 1, LLADA2_MINI),
    Forward("LLaDA2.0-mini", "llada2", 20, "block", 8, LLADA2_MINI),
)


# Kernels of each, counted on the simulated device: model and cache. Lower one when it is beaten.
SIMULATED = {("LLaDA-8B", "none"): 388, ("LLaDA-8B", "dual"): 420, ("LLaDA2.0-mini", "block"): 570}


@torch.no_grad()
def steady_forward(case: Forward) -> Callable[[], Tensor]:
    """The forward on `cuda`, real or simulated, after everything that is computed only once."""
    model: Any = random_model(case.family, **case.shape).to("cuda", torch.bfloat16)
    lengths, store = [BLOCK * (2 + row % 3) for row in range(case.rows)], Store()
    caches = [store.row(slot, length, case.rows) for slot, length in enumerate(lengths)]
    whole = Spans(Span(0, cache.length, cache.length, cache) for cache in caches)
    if case.cache == "none":
        steady = Spans(Span(0, length, length) for length in lengths)
    else:
        steady = Spans(Span(cache.length - BLOCK, cache.length, cache.length, cache) for cache in caches)

    def inputs(spans: Spans) -> tuple[Tensor, Spans, Tensor]:
        tokens = (torch.arange(sum(map(len, spans))) * 7 % 100).to("cuda")
        return tokens, spans, torch.arange(0, len(tokens), 2, device="cuda")

    model(*inputs(whole))
    given = inputs(steady)

    def forward() -> Tensor:
        with torch.no_grad():
            return cast("Tensor", model(*given))

    forward()
    return forward


def count_forward(case: Forward) -> Tally:
    """The cost of a steady forward."""
    with SimulatedDevice() as device:
        run = steady_forward(case)
        device.tally.clear()
        run()
        return device.tally.copy()


def measure(*, quick: bool = False) -> Iterator[ResultRow]:
    """One row per forward."""
    for case in FORWARDS[1:2] if quick else FORWARDS:
        tally = count_forward(case)
        kernels = tally.count("kernel")
        yield {
            "forward_of": case.model, "cache": case.cache, "batch": case.rows, "layers": case.layers,
            "kernels": kernels, "reads": tally.count("read"), "uploads": tally.count("upload"),
            "kernels_per_layer": kernels / case.layers,
        }  # fmt: skip
