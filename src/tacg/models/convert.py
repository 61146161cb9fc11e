"""From torch's `.bin` to safetensors. A `.bin` is a pickle; only its tensors are read, its code is never run."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor

from tacg.errors import TacgError
from tacg.files import make_room, refuse_irregular
from tacg.text import is_file, read_json

if TYPE_CHECKING:
    from pathlib import Path

PATTERNS = ("*.bin", "*.pt", "*.pth")
INDEX = "pytorch_model.bin.index.json"
NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")  # left by training


def convert(directory: Path, *, force: bool = False) -> tuple[Path, int]:
    """Write model.safetensors next to the pickled weights; returns the file and its number of tensors."""
    made = directory / "model.safetensors"
    if not directory.is_dir():
        raise TacgError(f"No checkpoint at {str(directory)!r}; give the directory that holds pytorch_model.bin.")
    if is_file(made) and not force:
        raise TacgError(f"{made} exists already; pass --force to replace it.")
    tensors: dict[str, Tensor] = {}
    for file in _pickles(directory):
        for name, tensor in read_pickled(file).items():
            if name in tensors:
                raise TacgError(f"{file}: {name!r} occurs twice.")
            tensors[name] = tensor
    save_tensors(tensors, made)
    return made, len(tensors)


def save_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Write safetensors atomically. Tensors that share memory are copied, because the format has no sharing."""
    real = make_room(file)
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        shared = tensor.untyped_storage().data_ptr() in seen
        seen.add(tensor.untyped_storage().data_ptr())
        apart[name] = tensor.clone(memory_format=torch.contiguous_format) if shared else tensor.contiguous()
    draft = real.with_name(f"{real.name}.part")
    try:
        save_file(apart, draft, metadata={"format": "pt"})
        draft.replace(real)
    finally:
        draft.unlink(missing_ok=True)


def read_pickled(file: Path) -> dict[str, Tensor]:
    """The tensors of a torch file by name. Anything that is not a tensor, or a plain container of them, is refused."""
    refuse_irregular(file, "file of weights")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about types that torch will remove
            found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # many exception types (torch, zip, pickle) with one meaning
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TacgError(
            f"{file} contains more than tensors ({first[:200]}). It may contain code, which is never run here; "
            "ask its authors for safetensors."
        ) from None
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not found:
        raise TacgError(f"{file} must hold tensors by name, got {type(found).__name__}.")
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise TacgError(f"{file} must hold tensors by name, but {str(name)[:80]!r} is a {type(tensor).__name__}.")
    return dict(found)


def _pickles(directory: Path) -> list[Path]:
    """The weight files: those that the index lists, or the only ones."""
    index = directory / INDEX
    if is_file(index):
        listed = read_json(index).get("weight_map")
        if not isinstance(listed, dict) or not listed:
            raise TacgError(f"{index} must hold a `weight_map`.")
        files = [directory / str(name).replace("\\", "/").rpartition("/")[2] for name in sorted({*listed.values()})]
        if missing := [file for file in files if not is_file(file)]:
            raise TacgError(f"{missing[0]} is listed in {index.name} but does not exist; download it again.")
        return files
    files = sorted(file for pattern in PATTERNS for file in directory.glob(pattern) if file.name not in NOT_WEIGHTS)
    if not files:
        raise TacgError(f"{directory} has no {', '.join(PATTERNS)} to convert.")
    if len(files) > 1 and directory / "pytorch_model.bin" not in files:
        names = ", ".join(file.name for file in files[:4])
        raise TacgError(f"{directory} has {len(files)} files that may be the weights ({names}); keep one of them.")
    return [directory / "pytorch_model.bin"] if directory / "pytorch_model.bin" in files else files
