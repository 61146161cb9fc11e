"""From a directory (or hub id, or built-in name) to a model: config.json + safetensors, no pickle, no remote code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from tacg.errors import TacgError, unknown
from tacg.models.base import ModelSpec
from tacg.models.llada import Llada, LladaConfig
from tacg.text import Tokenizer, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor, nn


def _llada(config: Mapping[str, Any]) -> Llada:
    return Llada(LladaConfig.read(config))


FAMILIES: dict[str, Callable[[Mapping[str, Any]], Llada]] = {"llada": _llada}
BUILT_IN = {"tiny": "random weights that have learned nothing: the machinery is real, the text is noise"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MASK_TOKENS = ("<|mdm_mask|>", "<|mask|>")
END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|role_end|>")


def load_checkpoint(source: str | Path, *, dtype: str = "float32", device: str = "cpu") -> tuple[Llada, Tokenizer]:
    """The model, in evaluation mode on its device, and its tokenizer."""
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    place = _device(device)
    directory = locate(source)
    config = read_json(directory / "config.json")
    family = config.get("model_type")
    if family not in FAMILIES:
        raise TacgError(
            f"{directory / 'config.json'}: model_type {family!r} is not supported. "
            f"Supported: {', '.join(FAMILIES)} (see `tacg models`)."
        )
    with torch.device("meta"):
        model = FAMILIES[family](config)
    _fill(model, directory, DTYPES[dtype], place)
    tokenizer = Tokenizer(directory)
    model.spec = _spec(str(source), family, config, directory, model, tokenizer)
    return model.eval(), tokenizer


def _device(name: str) -> torch.device:
    """The device, if something can be put there."""
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise TacgError(f"The device {name!r} cannot be used here: {first} `tacg doctor` says what there is.") from None


def locate(source: str | Path) -> Path:
    """The checkpoint's directory: a built-in name, a local directory, or a hub id that is downloaded."""
    if str(source) == "tiny":
        from tacg.models.tiny import tiny_checkpoint

        return tiny_checkpoint()
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise TacgError(f"{path} is a file; a checkpoint is a directory with config.json and *.safetensors.")
    name = str(source)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise TacgError(
            f"No checkpoint at {name!r}. Give a directory, a hub id (owner/name) or one of: {', '.join(BUILT_IN)}."
        )
    return _download(name)


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=["*.json", "*.jinja", "*.safetensors", "*.txt"]))
    except Exception as error:  # network, rights, names: many types, one remedy
        raise TacgError(
            f"{hub_id!r} could not be downloaded ({type(error).__name__}: {error}). "
            "Check the name and the network, or give a local directory."
        ) from error


def _fill(model: nn.Module, directory: Path, dtype: torch.dtype, device: torch.device) -> None:
    """Put the checkpoint's tensors into a model that was built without storage; every name and shape must fit."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found: dict[str, Tensor] = {}
    for name, tensor, file in _tensors(directory):
        if name not in wanted:
            raise TacgError(f"{file.name}: unexpected tensor {name!r}; config.json describes no such part.")
        if tuple(tensor.shape) != wanted[name]:
            raise TacgError(f"{file.name}: {name!r} must have shape {wanted[name]}, got {tuple(tensor.shape)}.")
        found[name] = tensor.to(device=device, dtype=dtype)
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        raise TacgError(
            f"{directory}: {len(missing)} tensor(s) missing from the safetensors files, first {missing[0]!r}."
        )
    model.load_state_dict(found, assign=True)
    model.requires_grad_(False)


def _tensors(directory: Path) -> Iterator[tuple[str, Tensor, Path]]:
    """Every (name, tensor, file), from one file or from the shards that the index lists."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise TacgError(f"{index} must hold a `weight_map`.")
        files = [directory / Path(str(name)).name for name in sorted(set(shards.values()))]
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in directory.glob(pattern))
        hint = f" {pickled[0]} is a pickle, which can run code when opened: convert it." if pickled else ""
        raise TacgError(f"{directory} has no *.safetensors file.{hint}")
    for file in files:
        try:
            with safe_open(file, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118 (not a mapping)
                    yield name, shard.get_tensor(name), file
        except FileNotFoundError:
            raise TacgError(f"{file} is listed in {index.name} but does not exist; download it again.") from None
        except (SafetensorError, OSError) as error:
            raise TacgError(f"{file} cannot be read as safetensors ({error}); download it again.") from None


def _spec(
    name: str, family: str, config: Mapping[str, Any], directory: Path, model: Llada, tokenizer: Tokenizer
) -> ModelSpec:
    """What the files say about special ids."""
    mask = config.get("mask_token_id")
    if mask is None:
        mask = next((found for token in MASK_TOKENS if (found := tokenizer.id_of(token)) is not None), None)
    ends = config.get("eos_token_id")
    if ends is None:
        ends = read_json(directory / "generation_config.json", missing_ok=True).get("eos_token_id")
    size = model.config.table_size
    (mask_id,) = _ids("mask_token_id", mask, size)
    turn_ends = [found for token in END_OF_TURN if (found := tokenizer.id_of(token)) is not None]
    return ModelSpec(
        name=name,
        family=family,
        vocab_size=size,
        mask_id=mask_id,
        eos_ids=tuple(sorted({*_ids("eos_token_id", ends, size), *turn_ends})),
        unwritable=tuple(sorted({*range(size)} - tokenizer.owned_ids() | {mask_id})),
        max_length=model.config.max_length,
    )


def _ids(field: str, value: Any, size: int) -> list[int]:
    """An id, or a list of them, from config.json."""
    ids = value if isinstance(value, list) else [value]
    if not ids or not all(type(each) is int and 0 <= each < size for each in ids):
        raise TacgError(f"config.json: `{field}` must be a token id below {size}, got {value!r}.")
    return ids
