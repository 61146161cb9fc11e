"""Matrix products that are also fast in types for which the CPU has no instructions.

Without such instructions PyTorch's products in bfloat16 or float16 are several times slower than in float32 (five
times, measured on an AMD EPYC with AVX2). The same product in float32, rounded once at the end, is what those
instructions compute, too: factors are exact in float32, and sums are kept in it. Only the order of the sum differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacg.models.quantized import PackedWeight

if TYPE_CHECKING:
    from collections.abc import Callable


def is_good_at(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the hardware has instructions for a dtype."""
    if dtype == torch.float32 or device.type not in ("cpu", "cuda"):
        return True
    if device.type == "cuda":
        return dtype == torch.float16 or torch.cuda.is_bf16_supported(including_emulation=False)
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # some builds of torch lack these
    return dtype == torch.bfloat16 and any(getattr(torch.cpu, test, bool)() for test in tests)


# Types that this CPU computes in float32.
WIDENED = frozenset(
    dtype for dtype in (torch.bfloat16, torch.float16) if not is_good_at(torch.device("cpu"), dtype)
)  # fmt: skip


def is_widened(x: Tensor) -> bool:
    """Whether products of this tensor are computed in float32 and rounded."""
    return x.dtype in WIDENED and x.device.type == "cpu"


def linear(x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None = None) -> Tensor:
    """[…, D] and [V, D] -> […, V]."""
    if is_widened(x):
        return linear(x.float(), _widened(weight), None if bias is None else bias.float()).to(x.dtype)
    return weight.product(x, bias) if isinstance(weight, PackedWeight) else F.linear(x, weight, bias)


def _widened(weight: Tensor | PackedWeight) -> Tensor | PackedWeight:
    """In float32; packed weights are unpacked to it anyway."""
    return weight if isinstance(weight, PackedWeight) else weight.float()


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


def plus_product(onto: Tensor, product: Linear, x: Tensor) -> Tensor:
    """`onto` [N, D] plus the product of x [N, I], without a bias. On a GPU one kernel, which writes into `onto`."""
    fused = x.device.type == "cuda" and type(product) is Linear and not is_packed(product.weight)
    return onto.addmm_(x, product.weight.t()) if fused else torch.add(onto, product(x))


def is_packed(weight: object) -> bool:
    """Whether a weight, or a module that stands for one, is packed."""
    return isinstance(weight, PackedWeight)


def plus(onto: Tensor, x: Tensor) -> Tensor:
    """`onto` [N, D] plus x [N, D]. On a GPU x may be float32; the sum is rounded once and written into `onto`."""
    return onto.add_(x) if onto.device.type == "cuda" else onto + x.to(onto.dtype)


def wide_product(x: Tensor, weight: Tensor) -> Tensor:
    """[N, D] and [V, D] -> float32 [N, V], without rounding. A GPU needs no float32 copies for this."""
    if x.device.type == "cuda" and x.dtype != torch.float32 and hasattr(torch.ops.aten.mm, "dtype"):
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return F.linear(x.float(), weight.float())


class SideBySide(nn.Module):
    """A module with several products of one input. On a GPU their weights are adjacent: one product computes them all.

    The parameters keep their names and are slices of the common table, so nothing is stored twice. Packed weights
    stay separate.

    together  names of parameters whose tables belong together, group by group
    """

    together: ClassVar[tuple[tuple[str, ...], ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.joint: dict[str, Tensor] = {}  # by the first name of its group

    def products(self, x: Tensor, *names: str) -> list[Tensor]:
        """[N, D] -> the products of these names, [N, V] each; on a GPU all in one tensor."""
        if x.device.type == "cuda" and f"{names[0]}.weight" in self.joint:
            return [F.linear(x, self.joint[f"{names[0]}.weight"], self.joint.get(f"{names[0]}.bias"))]
        parts = [getattr(self, name)(x) for name in names]
        return parts if x.device.type != "cuda" else [torch.cat(parts, dim=-1)]  # packed weights stay apart

    def make_room(self, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        """Common tables without storage: the slice of each parameter, by its name."""
        slices: dict[str, Tensor] = {}
        for names in self.together:
            shapes = [list(self.get_parameter(name).shape) for name in names]
            dim = max(0, len(shapes[0]) - 2)  # the axis of the outputs; that of experts comes before it
            sizes = [shape[dim] for shape in shapes]
            table = torch.empty([*shapes[0][:dim], sum(sizes), *shapes[0][dim + 1 :]], dtype=dtype, device=device)
            self.joint[names[0]] = table
            slices |= zip(names, torch.split(table, sizes, dim=dim), strict=True)
        return slices

    def settle(self) -> None:
        """Called when the parameters are on their device, for what is computed once."""

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """`to`, `half` and similar methods move parameter by parameter. On a GPU the tables are joined again."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.joint = {}
        first = next(self.parameters())
        if first.device.type == "cuda" and not any(map(is_packed, self.modules())):
            for name, place in self.make_room(first.dtype, first.device).items():
                owner, _, leaf = name.rpartition(".")
                place.copy_(self.get_parameter(name))
                setattr(self.get_submodule(owner), leaf, nn.Parameter(place, requires_grad=False))
        self.settle()
        return self


def gated(parts: list[Tensor]) -> Tensor:
    """Gate and up, separate or in one tensor -> SiLU(gate) * up."""
    gate, up = parts if len(parts) == 2 else parts[0].chunk(2, dim=-1)
    return F.silu(gate) * up
