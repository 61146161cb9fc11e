"""Muon (Jordan et al. 2024): momentum, made orthogonal. For many small matrices on a CPU.

`torch.optim.Muon` takes one matrix after the other and always computes in bfloat16. On a CPU without instructions for
bfloat16 that was a quarter of pocket's training. Here all matrices of one shape are one batch.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch

from tacg.models.products import is_good_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

FAST = torch.bfloat16 if is_good_at(torch.device("cpu"), torch.bfloat16) else torch.float32
ROUNDS = 5  # of the iteration; its coefficients are steep at zero and leave singular values between 0.7 and 1.2
A, B, C = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.Optimizer):
    """Nesterov momentum; every update gets singular values of about one."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every matrix."""
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                alike[tuple(matrix.shape)].append(matrix)
            for (height, width), matrices in alike.items():
                update = orthogonal(torch.stack([self._momentum(each, group["momentum"]) for each in matrices]))
                rate = group["lr"] * max(1.0, height / width) ** 0.5
                for matrix, change in zip(matrices, update, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(change, alpha=rate)

    def _momentum(self, matrix: nn.Parameter, momentum: float) -> Tensor:
        assert matrix.grad is not None
        average = self.state[matrix].setdefault("momentum_buffer", torch.zeros_like(matrix))
        average.lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(average, momentum)


def orthogonal(x: Tensor) -> Tensor:
    """[N, H, W] -> matrices with the same singular vectors and singular values of about one."""
    tall = x.shape[1] > x.shape[2]
    y = (x.mT if tall else x).to(FAST)
    y = y / y.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(ROUNDS):
        gram = y @ y.mT
        y = torch.baddbmm(y, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), y, beta=A)
    return (y.mT if tall else y).to(x.dtype)
