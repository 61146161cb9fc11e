"""From the tensors of a checkpoint to a model: all are checked against it first, then placed as they are read."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch.overrides import TorchFunctionMode

from tacg.errors import TacgError
from tacg.madvise import let_go
from tacg.models.products import SideBySide
from tacg.models.quantized import PackedWeight, make_room
from tacg.text import is_file, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

    from tacg.models.layers import Network

    Tell = Callable[[int, int], None]  # called with (bytes loaded, total bytes)

PIECE = 1 << 20  # values converted at a time, so that conversion needs little extra memory


class Unfilled(TorchFunctionMode):
    """Modules created in this context have no storage and no initial values.

    PyTorch would initialize values even without storage, and import 900 modules (150 MB) for it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        with torch.device("meta"):
            return func(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file.

    kind    its type as safetensors spells it: F32, BF16, F16, …; for packed tensors, what they unpack to
    read    its rows [start, stop), where rows are all dimensions but the last: [R, D]
    mapped  whether `read` returns the file itself, mapped into memory
    """

    file: str
    name: str
    shape: tuple[int, ...]
    kind: str
    read: Callable[[int, int], Tensor]
    mapped: bool = True

    @property
    def rows(self) -> int:
        """The number of rows."""
        return math.prod(self.shape[:-1])

    @property
    def size(self) -> int:
        """Bytes, unpacked."""
        return math.prod(self.shape) * (4 if self.kind == "F32" else 2)


class Weights(Protocol):
    """The weights of a checkpoint in some format. A tensor can be read while it is iterated over."""

    @property
    def place(self) -> Path:
        """File or directory."""
        ...

    def __iter__(self) -> Iterator[StoredTensor]: ...


@dataclass(frozen=True, slots=True)
class Safetensors:
    """The safetensors files of a directory."""

    place: Path

    def __iter__(self) -> Iterator[StoredTensor]:
        for file in self._files():
            with _opened(file) as shard:
                for name in shard.keys():  # noqa: SIM118 (not a mapping)
                    part = shard.get_slice(name)
                    shape = tuple(part.get_shape())

                    def read(start: int, stop: int, name: str = name, shard: Any = shard) -> Tensor:
                        whole: Tensor = shard.get_tensor(name)
                        return whole.reshape(-1, *whole.shape[-1:])[start:stop]

                    yield StoredTensor(file.name, name, shape, str(part.get_dtype()), read)

    def _files(self) -> list[Path]:
        """The shards that the index lists, or all files."""
        directory = self.place
        index = directory / "model.safetensors.index.json"
        if is_file(index):
            shards = read_json(index).get("weight_map")
            if not isinstance(shards, dict):
                raise TacgError(f"{index} must hold a `weight_map`.")
            names = sorted({str(name).rpartition("/")[2] for name in shards.values()})
            if missing := [name for name in names if not is_file(directory / name)]:
                raise TacgError(
                    f"{directory / missing[0]} is listed in {index.name} but does not exist; download it again."
                )
            return [directory / name for name in names]
        files = sorted(file for file in directory.glob("*.safetensors") if is_file(file))
        if not files:
            pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in directory.glob(pattern))
            hint = "is a pickle, which can run code: `tacg convert` turns its tensors into safetensors."
            raise TacgError(f"{directory} has no *.safetensors file." + (f" {pickled[0]} {hint}" if pickled else ""))
        return files


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """A safetensors file, mapped into memory."""
    try:
        with safe_open(file, framework="pt") as shard:
            yield shard
    except (SafetensorError, OSError) as error:
        raise TacgError(f"{file} cannot be read as safetensors ({error}); download it again.") from None


def own_dtype(weights: Weights) -> torch.dtype:
    """The type of most of the weights."""
    numbers: dict[str, int] = {}
    for tensor in weights:
        numbers[tensor.kind] = numbers.get(tensor.kind, 0) + math.prod(tensor.shape)
    most = max(numbers, key=lambda kind: numbers[kind], default="F32")
    return {"BF16": torch.bfloat16, "F16": torch.float16}.get(most, torch.float32)


def fill(
    model: Network, weights: Weights, dtype: torch.dtype, device_of: Callable[[str], torch.device],
    quantize: str | None = None, tell: Tell | None = None,
) -> None:  # fmt: skip
    """Put the tensors of a checkpoint into a model that was built without storage.

    Tensors that can be used as mapped are not copied. All others are converted (and quantized) piece by piece, and
    their pages are released. Experts, which may be stored one by one, go to their slice of the stack; on a GPU, tables
    that belong together go to their slice of a common one.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    places = _places(model, weights, shapes)
    total, done = sum(size for _, _, size in places.values()), 0
    packed = make_room(model, model.table, quantize, device_of) if quantize else {}
    placed = {} if quantize else _common_tables(model, dtype, device_of)
    for tensor in weights:
        if tensor.name not in places:
            continue
        target, expert, size = places[tensor.name]
        kind, device = torch.float32 if target.endswith("expert_bias") else dtype, device_of(target)
        alone = tensor.mapped and expert is None and target not in packed and target not in placed
        as_it_is = tensor.read(0, tensor.rows) if alone else None
        if as_it_is is not None and (as_it_is.dtype, as_it_is.device) == (kind, device):
            placed[target] = as_it_is.view(shapes[target])
        else:
            if target not in packed and target not in placed:
                placed[target] = torch.empty(shapes[target], dtype=kind, device=device)
            room = packed[target] if target in packed else placed[target]
            _convert(tensor, room, (expert or 0) * tensor.rows)
        done += size
        if tell is not None:
            tell(done, total)
    model.load_state_dict(placed, assign=True, strict=False)  # `_places` has checked that nothing is missing
    model.requires_grad_(False)
    model.quantize = quantize
    for module in model.modules():
        if isinstance(module, SideBySide):
            module.settle()


def _common_tables(model: Network, dtype: torch.dtype, device_of: Callable[[str], torch.device]) -> dict[str, Tensor]:
    """On a GPU: the slices for tensors whose tables are adjacent, by name."""
    if device_of("").type != "cuda":
        return {}
    modules = [(prefix, module) for prefix, module in model.named_modules() if isinstance(module, SideBySide)]
    return {
        f"{prefix}.{name}": place
        for prefix, module in modules
        for name, place in module.make_room(dtype, device_of(f"{prefix}.")).items()
    }


def _convert(tensor: StoredTensor, room: Tensor | PackedWeight, first: int) -> None:
    """Write a stored tensor into the rows of its parameter, from row `first` on."""
    height, step = room.shape[-2] if len(room.shape) > 1 else 1, max(1, PIECE // (tensor.shape or (1,))[-1])
    start = 0
    while start < tensor.rows:
        expert, row = divmod(first + start, height)  # a piece stays within one expert
        piece = tensor.read(start, min(start + step, start + height - row, tensor.rows))
        if isinstance(room, PackedWeight):
            room.put(first + start, piece)
        else:
            whole = room[expert] if room.dim() == 3 else room.view(height, *room.shape[-1:])
            whole[row : row + len(piece)].copy_(piece)
        if tensor.mapped:
            let_go(piece)
        start += len(piece)


def _places(
    model: Network, weights: Weights, wanted: dict[str, tuple[int, ...]]
) -> dict[str, tuple[str, int | None, int]]:
    """Where every tensor of the files goes (parameter, expert) and its size; raises unless all of it fits."""
    places: dict[str, tuple[str, int | None, int]] = {}
    given: dict[str, set[int | None]] = {}
    for tensor in weights:
        place = model.placed(tensor.name)
        if place is None:
            continue
        target, expert = place
        _check_tensor(tensor, wanted.get(target), expert)
        if expert in given.setdefault(target, set()):
            raise TacgError(f"{tensor.file}: {tensor.name!r} occurs twice.")
        given[target].add(expert)
        places[tensor.name] = target, expert, tensor.size
    missing = [
        name
        for name, shape in wanted.items()
        if not {None} & given.get(name, set()) and not _all(shape, given.get(name))
    ]
    if missing:
        what = "safetensors files" if weights.place.is_dir() else "file"
        raise TacgError(f"{weights.place}: {len(missing)} tensor(s) missing from the {what}, first {min(missing)!r}.")
    return places


def _all(shape: tuple[int, ...], experts: set[int | None] | None) -> bool:
    """Whether every expert of a stack was given."""
    return experts is not None and len(experts) == shape[0]


def _check_tensor(tensor: StoredTensor, wanted: tuple[int, ...] | None, expert: int | None) -> None:
    """Check a tensor of a file against its parameter."""
    what = f"{tensor.file}: {tensor.name!r}"
    if wanted is None:
        raise TacgError(f"{what} is an unexpected tensor; config.json describes no such part.")
    if expert is not None:
        if expert >= wanted[0]:
            raise TacgError(f"{what} is beyond the {wanted[0]} experts of config.json.")
        wanted = wanted[1:]
    if tensor.shape != wanted:
        raise TacgError(f"{what} must have shape {wanted}, got {tensor.shape}.")
    if not tensor.kind.startswith(("F", "BF")):
        raise TacgError(f"{what} must hold floating-point numbers, got {tensor.kind}.")
