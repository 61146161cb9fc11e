"""Matrix products, fast also in a type that the CPU has no instructions for.

Without such instructions PyTorch's products in bfloat16 or float16 are several times slower than in float32 (five
times, measured on an AMD EPYC with AVX2). The same product in float32, rounded once at the end, is what those
instructions compute, too: factors are exact in float32, and sums are kept in it. Only the order of the sum differs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def is_good_at(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the hardware has instructions for a dtype."""
    if dtype == torch.float32 or device.type not in ("cpu", "cuda"):
        return True
    if device.type == "cuda":
        return dtype == torch.float16 or torch.cuda.is_bf16_supported(including_emulation=False)
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # missing where torch knows no such thing
    return dtype == torch.bfloat16 and any(getattr(torch.cpu, test, bool)() for test in tests)


# What this CPU computes by way of float32.
WIDENED = frozenset(
    dtype for dtype in (torch.bfloat16, torch.float16) if not is_good_at(torch.device("cpu"), dtype)
)  # fmt: skip


def is_widened(x: Tensor) -> bool:
    """Whether products of this tensor are computed in float32 and rounded."""
    return x.dtype in WIDENED and x.device.type == "cpu"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[…, D] and [V, D] -> […, V]."""
    if not is_widened(x):
        return F.linear(x, weight, bias)
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, grouped: bool) -> Tensor:
    """[B, H, T, D] and keys and values [B, KV, S, D] -> [B, H, T, D]. `grouped`: heads share keys."""
    dtype = q.dtype
    if is_widened(q):
        q, k, v = q.float(), k.float(), v.float()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped).to(dtype)


class Linear(nn.Linear):
    """A learned product."""

    def forward(self, x: Tensor) -> Tensor:
        """[…, D] -> […, V]."""
        return linear(x, self.weight, self.bias)
