"""Layers through `torch.compile`: norms, rotations and gates become part of few kernels.

Each layer is compiled in two pieces, before and after attention. Attention and the store of keys and values are not
compiled: the layout of rows is computed in Python, and would need a new compilation every time. All layers of one kind
share their pieces. The number of tokens is dynamic, so nothing is compiled again during a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tacg.errors import TacgError
from tacg.models.experts import Experts
from tacg.models.layers import LayerSteps

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


def compile_layers(model: nn.Module, backend: str = "inductor") -> None:
    """Compile the layers of a model in place, on the first forward. The model must have its device and type by then."""
    layers = [module for module in model.modules() if isinstance(module, LayerSteps)]
    if not layers:
        raise TacgError("`compile` is not supported for this family: its layers are not split into two steps.")
    for layer in layers:
        layer.before = _piece(layer.before, backend)  # type: ignore[method-assign]
        if not _counts_on_the_host(layer):
            layer.after = _piece(layer.after, backend)  # type: ignore[method-assign]


def _counts_on_the_host(layer: LayerSteps) -> bool:
    """Whether the layer reads how many tokens each expert has: on the CPU, where groups are padded, and if packed."""
    weights: list[object] = [module.gate_proj for module in layer.modules() if isinstance(module, Experts)]
    return any(not isinstance(each, Tensor) or each.device.type == "cpu" for each in weights)


def _piece(step: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """The step, compiled without graph breaks for any number of tokens."""
    compiled = torch.compile(step, backend=backend, fullgraph=True)

    def run(x: Tensor, other: Any) -> Any:
        for each in (x, *(other[:2] if isinstance(other, tuple) else (other,))):
            torch._dynamo.maybe_mark_dynamic(each, 0)
        return compiled(x, other)

    return run
