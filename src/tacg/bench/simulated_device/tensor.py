"""Tensors and random numbers that say they are on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from tacg.bench.simulated_device.device import SimulatedDevice

CPU = torch.device("cpu")


class MixedDevicesError(RuntimeError):
    """Tensors of two devices in one operation, which CUDA would refuse."""


class DeviceTensor(torch.Tensor):
    """A tensor that says it is on a device; its numbers are in `host`, on the CPU."""

    host: Tensor
    current: ClassVar[SimulatedDevice | None] = None

    @staticmethod
    def __new__(cls, host: Tensor, device: torch.device) -> DeviceTensor:  # noqa: D102
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, host.size(), strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            layout=host.layout, device=device,
        )  # fmt: skip
        made.host = host
        return made

    def __init__(self, host: Tensor, device: torch.device) -> None:
        pass

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.host}, device='{self.device}')"

    def data_ptr(self) -> int:
        """The device that the tensor claims to be on."""
        return self.host.data_ptr()

    def tolist(self) -> Any:
        """By a copy to the CPU, as with CUDA."""
        return self.cpu().tolist()

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Attention and norms are one kernel. PyTorch chooses it in C++ that a CPU build does not have for CUDA."""
        if func in (F.scaled_dot_product_attention, F.rms_norm):
            return _running().one_kernel(func, args, kwargs or {})
        if func is torch._has_compatible_shallow_copy_type:
            return False  # `Module.to` must replace the CPU's parameters, not overwrite their values
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Reached when the simulation is not active: in another thread, or after its end."""
        return _running().run(func, args, kwargs or {})


def _running() -> SimulatedDevice:
    if DeviceTensor.current is None:
        raise RuntimeError("This tensor is on a simulated device, and the simulation has ended.")
    return DeviceTensor.current


class DeviceGenerator(torch.Generator):
    """A device's random numbers: the same as the CPU's, so that decodes can be compared."""

    known: ClassVar[WeakValueDictionary[int, DeviceGenerator]] = WeakValueDictionary()
    place: torch.device

    def __new__(cls, device: Any = CPU) -> DeviceGenerator:  # noqa: D102
        made: DeviceGenerator = super().__new__(cls, device=CPU)  # type: ignore[call-arg]
        made.place = indexed(torch.device(device))
        cls.known[made._cdata] = made  # type: ignore[attr-defined]
        return made

    def __init__(self, device: Any = CPU) -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device of its numbers."""
        return self.place


def check_generator(kwargs: dict[str, Any], device: torch.device) -> None:
    """Raise if an operation on the device is given a generator of another."""
    generator = kwargs.get("generator")
    if generator is not None:
        place = DeviceGenerator.known.get(generator._cdata, generator).device  # PyTorch passes on a different object
        if place != device:
            raise MixedDevicesError(f"Expected a generator of {device}, found one of {place}.")


def indexed(device: torch.device) -> torch.device:
    """The device with its number: `cuda` is `cuda:0`."""
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
