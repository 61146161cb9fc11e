"""Weights stored in 8 or 4 bits. A product unpacks them, a few rows at a time.

int8  one scale per output channel, symmetric: 8 bits per weight
int4  a scale and a lowest value per 32 neighbouring weights of a row, two weights in a byte: 5 bits per weight

Products of layers and experts are packed. Embeddings, norms, biases and the routers of experts stay as they are. The
output head is packed in 8 bits for both kinds, unless it is tied to the embeddings: then it stays as it is, too.
PyTorch's kernels for such weights (`_weight_int8pack_mm`, `_weight_int4pack_mm_for_cpu`) are not used: in float32 they
take 16 to 51 times as long as a plain product. In bfloat16 they win at 1 and at 16 tokens and lose at 64, nearer to the
forwards of a diffusion model (docs/bench/quantize, measured on one core with AVX2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacg.errors import TacgError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS = ("int8", "int4")
GROUP = 32  # weights that share a scale and a lowest value in int4
ROUTERS = ".gate.weight"  # routers are small, and a small error there sends a token to another expert
CACHED = 1 << 19  # weights that are unpacked at a time on a CPU: they stay in its cache
UNPACKED = 1 << 25  # and elsewhere: much less than the memory that packing saves


class PackedWeight(nn.Module):
    """A weight [V, D], or a stack of them [E, V, D], in 8 or 4 bits. It is used in place of a tensor.

    values  int8 […, V, D]; for int4 uint8 […, V, D / 2], the first half of a row in the low bits
    scale   float32 […, V, 1]; for int4 float16 […, V, D / GROUP, 1]
    lowest  only for int4, float16, shaped like `scale`: the number that a value of 0 means
    """

    def __init__(self, values: Tensor, scale: Tensor, lowest: Tensor | None) -> None:
        super().__init__()
        self.values, self.scale = _fixed(values), _fixed(scale)
        self.lowest = None if lowest is None else _fixed(lowest)
        self.shape: tuple[int, ...] = (*values.shape[:-1], values.shape[-1] * (1 if lowest is None else 2))

    @classmethod
    def empty(cls, kind: str, shape: tuple[int, ...], device: torch.device) -> PackedWeight:
        """Room for a weight of this shape."""
        *rows, width = shape
        if kind == "int8":
            scale = torch.empty(*rows, 1, device=device)
            return cls(torch.empty(*rows, width, dtype=torch.int8, device=device), scale, None)
        scale, lowest = (torch.empty(*rows, width // GROUP, 1, dtype=torch.float16, device=device) for _ in range(2))
        return cls(torch.empty(*rows, width // 2, dtype=torch.uint8, device=device), scale, lowest)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, expert: int) -> PackedWeight:
        """One weight of a stack."""
        lowest = None if self.lowest is None else self.lowest[expert]
        return PackedWeight(self.values[expert], self.scale[expert], lowest)

    @property
    def device(self) -> torch.device:
        """Its device."""
        return self.values.device

    def put(self, start: int, weight: Tensor) -> None:
        """Pack float [R, D] into the rows from `start` on; rows of a stack are numbered consecutively."""
        rows = slice(start, start + len(weight))
        values, weight = self.values.flatten(0, -2), weight.to(self.device, torch.float32)
        if self.lowest is None:
            scale = self.scale.flatten(0, -2)
            scale[rows] = weight.abs().amax(dim=-1, keepdim=True) / 127
            values[rows] = (weight / scale[rows].clamp(min=1e-30)).round_().to(torch.int8)
            return
        scale, lowest = self.scale.flatten(0, -3), self.lowest.flatten(0, -3)
        groups = torch.unflatten(weight, -1, (-1, GROUP))
        least, most = groups.aminmax(dim=-1, keepdim=True)
        lowest[rows] = least.half()
        scale[rows] = ((most - lowest[rows].float()) / 15).half()
        steps = (groups - lowest[rows]) / scale[rows].float().clamp(min=1e-30)
        first, second = steps.round_().clamp_(0, 15).to(torch.uint8).flatten(-2).chunk(2, dim=-1)
        values[rows] = first | second << 4

    def unpacked(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """Rows [start, stop) of a single weight as numbers [R, D]; of a stack whole weights [R, V, D]."""
        values, scale = self.values[start:stop], self.scale[start:stop].float()
        if self.lowest is None:
            return values.float().mul_(scale).to(dtype)
        steps = torch.unflatten(torch.cat([values & 15, values >> 4], dim=-1), -1, (-1, GROUP))
        return steps.float().mul_(scale).add_(self.lowest[start:stop]).flatten(-2).to(dtype)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """[…, D] -> […, V]."""
        count, width = self.shape
        step = max(32, (CACHED if x.device.type == "cpu" else UNPACKED) // width // 32 * 32)
        parts = [
            F.linear(
                x, self.unpacked(start, start + step, x.dtype), None if bias is None else bias[start : start + step]
            )
            for start in range(0, count, step)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def check_kind(kind: object) -> str | None:
    """A kind of quantization by name; None for none."""
    if kind is not None and kind not in KINDS:
        raise unknown("way to quantize", str(kind), KINDS)
    return kind if isinstance(kind, str) else None


def make_room(
    model: nn.Module, table: object, kind: str, device_of: Callable[[str], torch.device]
) -> dict[str, PackedWeight]:
    """Allocate packed weights in a model that was built without storage; returns them by name.

    table      the model's output table
    device_of  the device of the tensor with a name
    """
    packed = {}
    for name, parameter in list(_large(model)):
        if kind == "int4" and parameter.shape[-1] % GROUP:
            raise TacgError(
                f"{type(model).__name__} cannot be quantized to int4: {name!r} is {parameter.shape[-1]} wide, which is "
                f"not a multiple of {GROUP}. Use int8."
            )
        home, _, last = name.rpartition(".")
        place = PackedWeight.empty("int8" if parameter is table else kind, tuple(parameter.shape), device_of(name))
        module = model.get_submodule(home)
        delattr(module, last)
        setattr(module, last, place)
        packed[name] = place
    return packed


def _large(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights of products, single or stacked, without routers."""
    for home, module in model.named_modules():
        for last, parameter in module.named_parameters(prefix=home, recurse=False):
            alone = isinstance(module, nn.Linear) and parameter.dim() == 2 and not last.endswith(ROUTERS)
            if alone or parameter.dim() == 3:
                yield last, parameter


def _fixed(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
