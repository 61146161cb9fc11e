"""Which experts a token goes to: groups of experts first, then experts of these groups (DeepSeek-V3's rule)."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None


def route(
    logits: Tensor, bias: Tensor, *, groups: int, kept_groups: int, count: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """Scores of the experts float32 [N, E] -> the K chosen ones int64 [N, K] and their weights float32 [N, K].

    bias   [E], only affects the choice
    count  K
    """
    experts = logits.shape[1]
    fits = not (experts & (experts - 1) or groups & (groups - 1))  # powers of 2, as Triton requires
    if HAS_TRITON and fits and logits.device.type == "cuda" and not torch.compiler.is_compiling():
        from tacg.models.triton_routing import route as in_one_kernel

        return in_one_kernel(logits, bias, groups, kept_groups, count, scaling)
    return step_by_step(logits, bias, groups, kept_groups, count, scaling)


def step_by_step(
    logits: Tensor, bias: Tensor, groups: int, kept_groups: int, count: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """The readable version. A group's score is the sum of its two best experts."""
    score = logits.sigmoid()
    wish = score + bias.float()
    group = wish.view(len(wish), groups, -1)
    best = group.topk(min(2, group.shape[2]), dim=2).values.sum(dim=2).topk(kept_groups, dim=1).indices
    kept = torch.zeros(group.shape[:2], dtype=torch.bool, device=wish.device).scatter_(1, best, True)
    wish = group.masked_fill(~kept[:, :, None], -torch.inf).flatten(1)
    chosen = wish.topk(count, dim=1).indices
    weight = score.gather(1, chosen)
    return chosen, weight / (weight.sum(dim=1, keepdim=True) + 1e-20) * scaling
