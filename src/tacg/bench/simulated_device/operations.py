"""PyTorch operations as a device sees them: where they may run, what they wait for, what they return."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tacg.bench.simulated_device.tensor import CPU, DeviceTensor, MixedDevicesError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor
    from torch._ops import OpOverload

# Operations that only allocate memory or return a view.
FREE = {
    "alias", "detach", "detach_", "empty", "empty_like", "empty_strided", "is_pinned", "lift_fresh", "new_empty",
    "new_empty_strided", "set_", "_local_scalar_dense", "_unsafe_view",
}  # fmt: skip
# How often an operation's CUDA code waits for the device: the size of the result, or a check, depends on values.
READS = {
    "_local_scalar_dense": 1, "nonzero": 1, "masked_select": 1, "equal": 1, "_unique": 1, "_unique2": 1,
    "unique_dim": 1, "unique_consecutive": 1, "unique_dim_consecutive": 1, "bincount": 2,
}  # fmt: skip
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
FILLING = {"masked_fill", "masked_fill_", "index_fill", "index_fill_"}


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among the arguments, also inside lists."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_in(value)
    return found


def on_host(value: Any) -> Any:
    """Arguments with the CPU's tensors in place of the device's."""
    if isinstance(value, DeviceTensor):
        return value.host
    if isinstance(value, list | tuple):
        return [on_host(each) for each in value]
    if isinstance(value, dict):
        return {name: on_host(each) for name, each in value.items()}
    return value


def computed(func: OpOverload[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The operation on the CPU."""
    if func._schema.name == "aten::_pin_memory":  # which a CPU build does not support
        return args[0].clone()
    if str(func) == "aten.mm.dtype":  # only CUDA has products whose result is not rounded to the type of the factors
        return torch.mm(args[0].host.to(args[2]), args[1].host.to(args[2]))
    named = on_host(kwargs)
    named.pop("pin_memory", None)
    if named.get("device") is not None and torch.device(named["device"]).type == "cuda":
        named["device"] = CPU
    return func(*on_host(args), **named)


def common(what: str, tensors: Sequence[Tensor]) -> torch.device:
    """The device that all tensors are on."""
    devices = {tensor.device: tensor for tensor in tensors}
    if len(devices) > 1:
        told = " and ".join(f"{device} {tuple(tensor.shape)}" for device, tensor in devices.items())
        raise MixedDevicesError(f"Expected all tensors of {what} to be on one device, found {told}.")
    return next(iter(devices))


class Facts(NamedTuple):
    """What an operation's schema says. Its alias sets tell which arguments and results are written to."""

    name: str
    composite: bool
    free: bool
    takes_numbers: bool
    written: dict[frozenset[str], tuple[int, str]]  # place and name of the argument
    results: list[frozenset[str] | None]


@functools.cache
def facts_of(func: OpOverload[..., Any]) -> Facts:
    """Read once from the schema."""
    full_name: str = func.name()  # type: ignore[no-untyped-call]
    name = func._schema.name.split("::")[1]
    arguments, results = func._schema.arguments, func._schema.returns
    return Facts(
        name,
        torch._C._dispatch_has_kernel_for_dispatch_key(full_name, "CompositeImplicitAutograd"),
        func.is_view or name in FREE,
        torch.Tag.pointwise in func.tags or name in FILLING or name in ("fill", "fill_"),
        {
            frozenset(each.alias_info.before_set): (place, each.name)
            for place, each in enumerate(arguments)
            if each.alias_info is not None and each.alias_info.is_write
        },
        [
            frozenset(each.alias_info.before_set) if each.alias_info is not None and each.alias_info.is_write else None
            for each in results
        ],
    )


def reads_of(facts: Facts, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """How often the operation waits for the device; for indexing, see `SimulatedDevice`."""
    if facts.name == "repeat_interleave":
        return int(kwargs.get("output_size") is None)
    if facts.name == "_grouped_mm":
        return int(not in_one_go(args))
    if facts.name in FILLING:
        return int(isinstance(args[-1], DeviceTensor))  # the value is fetched as a number
    if facts.name == "isin" and not kwargs.get("assume_unique"):
        among, wanted = (x.numel() if isinstance(x, torch.Tensor) else 1 for x in args[:2])
        return 2 if wanted >= 10 * among**0.145 else 0  # many indices are sorted first, and duplicates dropped
    return READS.get(facts.name, 0)


def in_one_go(args: Sequence[Any]) -> bool:
    """Whether a grouped product is one kernel. For other types, PyTorch fetches the offsets and loops over groups."""
    return bool(args[0].dtype == torch.bfloat16)


def launches_of(facts: Facts, args: Sequence[Any]) -> int:
    """How many kernels the operation launches; may be 0."""
    return 0 if facts.free else len(args[1]) if facts.name == "_grouped_mm" and not in_one_go(args) else 1


def device_of(facts: Facts, args: Sequence[Any], tensors: Sequence[Tensor]) -> torch.device:
    """The device of an operation; raises if its tensors are not all there."""
    if facts.name in INDEXING:  # indices may be on the CPU, and so may a number that is written
        value = [x for x in args[2:3] if isinstance(x, DeviceTensor) or x.dim()]
        tensors = [args[0], *value, *(x for x in args[1] if isinstance(x, DeviceTensor))]
    elif facts.takes_numbers:
        targets = [args[place] for place, _ in facts.written.values() if place < len(args)]
        tensors = [x for x in tensors if isinstance(x, DeviceTensor) or x.dim() or any(x is t for t in targets)]
    return common(facts.name, tensors)


def wrapped(facts: Facts, args: Sequence[Any], kwargs: dict[str, Any], result: Any, device: torch.device) -> Any:
    """The result as tensors of the device. An argument that was written to is returned itself."""
    given = {}
    for alias, (place, name) in facts.written.items():
        given[alias] = tensor = args[place] if place < len(args) else kwargs.get(name)
        if isinstance(tensor, DeviceTensor) and tensor.shape != tensor.host.shape:
            raise NotImplementedError(f"`{facts.name}` changes a tensor's shape; the simulated device cannot.")

    def wrap(value: Any, alias: frozenset[str] | None) -> Any:
        if alias is not None:
            return given[alias]
        if isinstance(value, torch.Tensor):
            return DeviceTensor(value, device)
        return [wrap(each, None) for each in value] if isinstance(value, list | tuple) else value

    if len(facts.results) == 1:
        return wrap(result, facts.results[0])
    return tuple(wrap(*pair) for pair in zip(result, facts.results, strict=True)) if facts.results else result
