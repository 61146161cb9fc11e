"""The device itself: it intercepts every operation, counts it, and computes it on the CPU."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tacg.bench.simulated_device.attention import varlen_attention
from tacg.bench.simulated_device.guard import register_guard
from tacg.bench.simulated_device.operations import (
    INDEXING,
    Facts,
    common,
    computed,
    device_of,
    facts_of,
    launches_of,
    on_host,
    reads_of,
    tensors_in,
    wrapped,
)
from tacg.bench.simulated_device.tally import Site, Tally, asking_line
from tacg.bench.simulated_device.tensor import (
    CPU,
    DeviceGenerator,
    DeviceTensor,
    MixedDevicesError,
    check_generator,
    indexed,
)
from tacg.bench.simulated_device.triton import emulated_kernels
from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor
    from torch._ops import OpOverload


def _nothing_to_do() -> None:
    pass


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes every operation to the device, including those that create tensors."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device

    def __torch_dispatch__(
        self, func: OpOverload[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return self.device.run(func, args, kwargs or {})


class SimulatedDevice:
    """While this context is open, `cuda` (and `cuda:1`, …) can be used as a device, and `tally` counts what it does.

    This holds for the thread that opened it. Tensors on this device can also be used on the next one that is opened.

    Counts are grouped by phase. A phase is set by `phase`, or by a profiler label in the code that runs:
    `torch.profiler.record_function("tacg.scan")` begins the phase `scan`.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self.index = 0  # of the current device
        self._phases = ["other"]
        self._patches = contextlib.ExitStack()
        self._mode = _Mode(self)

    def __enter__(self) -> SimulatedDevice:
        if DeviceTensor.current is not None:
            raise TacgError("A simulated device is open already; use that one.")
        register_guard()
        with contextlib.ExitStack() as patches:
            patches.enter_context(mock.patch.object(torch.cuda, "_lazy_init", _nothing_to_do))
            patches.enter_context(mock.patch.object(torch.cuda, "synchronize", self._synchronize))
            patches.enter_context(mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)))
            for name in ("_exchange_device", "_maybe_exchange_device"):
                patches.enter_context(mock.patch.object(torch.cuda, name, self._exchange_device))
            patches.enter_context(mock.patch.object(torch, "Generator", DeviceGenerator))
            patches.enter_context(mock.patch.object(DeviceTensor, "current", self))
            # torch.tensor(…, device=…) first makes a tensor on the CPU, whose copy is then intercepted.
            patches.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
            torch._C._set_only_lift_cpu_tensors(True)
            patches.enter_context(emulated_kernels(self._launch))
            patches.enter_context(self._mode)
            self._patches = patches.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count under this name; the innermost wins. Also a decorator of functions."""
        self._phases.append(name)
        try:
            yield
        finally:
            self._phases.pop()

    # -- counting ----------------------------------------------------------------------------------------------------

    def _count(self, kind: str, operation: str, times: int = 1) -> None:
        if times:
            self.tally[Site(kind, self._phases[-1], operation, asking_line())] += times

    def _synchronize(self, device: Any = None) -> None:
        self._count("read", "synchronize")

    def _exchange_device(self, index: int) -> int:
        """Make a device the current one, if the index is not negative; returns the one before."""
        before, self.index = self.index, index if index >= 0 else self.index
        return before

    def _launch(self, kernel: Callable[..., None], arguments: dict[str, Any]) -> None:
        """A kernel of our own, emulated. Triton launches on the current device."""
        here = common(kernel.__name__, tensors_in(tuple(arguments.values())))
        if here.index != self.index:
            raise MixedDevicesError(
                f"{kernel.__name__} was launched on cuda:{self.index}, but its tensors are on {here}."
            )
        self._count("kernel", kernel.__name__)
        kernel(**on_host(arguments))

    def one_kernel(self, func: Callable[..., Tensor], args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        """One kernel with CUDA, though several operations on a CPU. Norms need dense input and copy any other."""
        device = common(func.__name__, tensors_in((*args, *kwargs.values())))
        self._count("kernel", "contiguous", func is F.rms_norm and not args[0].is_contiguous())
        self._count("kernel", func.__name__)
        return DeviceTensor(func(*on_host(args), **on_host(kwargs)), device)

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, func: OpOverload[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """One operation: refused, counted, and computed on the CPU."""
        if func.namespace == "profiler":
            self._label(func, args)
            return func(*args, **kwargs)
        if func._schema.name == "torch_attn::_varlen_attn":
            made = self.one_kernel(varlen_attention, args, kwargs)
            return made, made.new_empty(0), made.new_empty(0)  # only read in training
        given = tensors_in((*args, *kwargs.values()))
        asked = None if kwargs.get("device") is None else indexed(torch.device(kwargs["device"]))
        if (asked or CPU) == CPU and not any(isinstance(tensor, DeviceTensor) for tensor in given):
            check_generator(kwargs, CPU)
            return computed(func, args, kwargs)
        facts = facts_of(func)
        if facts.composite:  # composite operations, which arrive whole under inference mode
            with self._mode:
                return func.decompose(*args, **kwargs)
        if facts.name == "copy_":
            self._count_copy(args[1], args[0].device, args[0])
            computed(func, args, kwargs)
            return args[0]
        device = asked or device_of(facts, args, given)
        check_generator(kwargs, device)
        result = computed(func, args, kwargs)
        if facts.name == "_to_copy":
            self._count_copy(args[0], device, result)
        elif device != CPU:
            self._count_operation(facts, args, kwargs, result)
        return result if device == CPU else wrapped(facts, args, kwargs, result, device)

    def _label(self, func: OpOverload[..., Any], args: Sequence[Any]) -> None:
        """A profiler label begins or ends; labels that are not ours change nothing."""
        if "enter" in func._schema.name:
            room, _, phase = str(args[0]).partition(".")
            self._phases.append(phase if room == "tacg" and phase else self._phases[-1])
        elif len(self._phases) > 1:
            self._phases.pop()

    def _count_copy(self, source: Tensor, target: torch.device, written: Tensor) -> None:
        """Before a copy between devices, a kernel on the device makes the tensor dense if it is not."""
        if not source.numel():
            return
        if source.device == target:
            self._count("kernel", "copy")
        elif target.type == "cpu":
            self._count("kernel", "contiguous", not source.is_contiguous())
            self._count("read", "copy")
        elif source.device.type == "cpu":
            self._count("upload", "copy")
            self._count("kernel", "copy", not written.is_contiguous())
        else:
            self._count("kernel", "copy between devices")

    def _count_operation(self, facts: Facts, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        if facts.name in INDEXING:
            self._count_indexing(args)
        reads = reads_of(facts, args, kwargs)
        self._count("read", facts.name, reads)
        made = tensors_in((result,))
        idle = not reads and made and not any(tensor.numel() for tensor in made)  # empty: no kernel is launched
        self._count("kernel", facts.name, 0 if idle else launches_of(facts, args))

    def _count_indexing(self, args: Sequence[Any]) -> None:
        indices = [index for index in args[1] if index is not None]
        self._count("upload", "index from the CPU", sum(not isinstance(index, DeviceTensor) for index in indices))
        masks = [x for x in indices if isinstance(x, DeviceTensor) and x.dtype in (torch.bool, torch.uint8)]
        if len(args) > 2 and not isinstance(args[2], DeviceTensor):
            if len(masks) == len(indices) == 1:
                return  # a number under a mask: that is `masked_fill_`
            self._count("upload", "number to be written")
        self._count("kernel", "nonzero of a boolean index", len(masks))
        self._count("read", "boolean index", len(masks))
