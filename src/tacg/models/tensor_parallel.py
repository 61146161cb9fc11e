"""One model over several processes: each holds a part of the heads and of the feed-forward of every layer.

Every process runs the same program on the same requests and writes the same tokens. Twice per layer they sum their
partial results. For dense families only; for experts, and for servers over many GPUs, see docs/engines.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from tacg.errors import TacgError
from tacg.models.experts import Experts
from tacg.models.layers import LayerSteps
from tacg.models.products import Linear

# Products that compute heads or the inner features: each process has some of their outputs.
MAKING = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "ff_proj")
# Products that read them: each process has some of their inputs, and the outputs are summed.
READING = ("o_proj", "attn_out", "down_proj", "ff_out")


class SummedLinear(Linear):
    """A linear layer whose inputs are split over processes."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, part of I] -> [N, D], summed over all processes."""
        made = super().forward(x)
        dist.all_reduce(made)
        return made


def split_over_processes(model: nn.Module) -> None:
    """Keep this process's part of every layer. `torch.distributed` must be initialized, and the model on its device.

    The parts that are not kept are freed. Embeddings, norms and the output table stay whole.
    """
    rank, count = dist.get_rank(), dist.get_world_size()
    layers = [module for module in model.modules() if isinstance(module, LayerSteps)]
    if not layers or any(isinstance(module, Experts) for module in model.modules()):
        raise TacgError("Only dense families can be split over processes; for experts use SGLang (docs/engines.md).")
    if getattr(model, "quantize", None):
        raise TacgError("Quantized models cannot be split over processes; load without `quantize`.")
    for layer in layers:
        owners: list[Any] = list(layer.modules())
        for owner in owners:
            if hasattr(owner, "sizes"):
                if any(size % count for size in owner.sizes):
                    raise TacgError(f"Heads {owner.sizes} cannot be split evenly over {count} processes.")
                owner.sizes = [size // count for size in owner.sizes]
            for name in {*MAKING, *READING} & dict(owner.named_children()).keys():
                setattr(owner, name, _part(getattr(owner, name), rank, count, summed=name in READING))
        layer.to(next(layer.parameters()).device)  # adjacent tables are joined again


def _part(product: Linear, rank: int, count: int, *, summed: bool) -> Linear:
    """This process's slice: of the inputs if outputs are summed, otherwise of the outputs."""
    size = product.weight.shape[1 if summed else 0]
    if size % count:
        raise TacgError(f"{size} features cannot be split evenly over {count} processes.")
    with torch.device("meta"):
        made = (SummedLinear if summed else Linear)(1, 1, bias=product.bias is not None)
    weight = product.weight.chunk(count, dim=1 if summed else 0)[rank]
    made.weight = nn.Parameter(weight.contiguous().clone(), requires_grad=False)
    if product.bias is not None:
        made.bias = nn.Parameter(product.bias.chunk(count)[rank].clone(), requires_grad=False)
    made.out_features, made.in_features = made.weight.shape
    return made
