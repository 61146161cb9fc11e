"""From a directory (or hub id, or built-in name) to a model: config.json + safetensors, no pickle, no remote code."""

from __future__ import annotations

import contextlib
import difflib
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from tacg.errors import TacgError, unknown
from tacg.madvise import let_go
from tacg.models.base import NO_MASK, ModelSpec
from tacg.models.bert import Bert, BertConfig, MaskedLM
from tacg.models.dream import Dream, DreamConfig
from tacg.models.fields import short
from tacg.models.judges import JUDGES, judge_checkpoint
from tacg.models.layers import LayerSteps
from tacg.models.llada import Llada, LladaConfig
from tacg.models.llada2 import Llada2, Llada2Config
from tacg.models.modernbert import ModernBert, ModernBertConfig
from tacg.models.products import SideBySide, is_good_at
from tacg.models.qwen2 import FAST_DLLM, Qwen2
from tacg.models.qwen3 import Qwen3, Qwen3Config
from tacg.text import LLADA_TEMPLATE, Tokenizer, is_file, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    Tell = Callable[[int, int], None]  # told how many of how many bytes are loaded

AnyNetwork = Llada | Dream | Llada2 | Qwen3 | Bert | ModernBert


def _llada(config: Mapping[str, Any]) -> AnyNetwork:
    """Two networks go by the name `llada`; only one of them has experts."""
    if config.get("num_experts"):
        return Qwen3(Qwen3Config.read(config))
    return Llada(LladaConfig.read(config))


FAMILIES: dict[str, Callable[[Mapping[str, Any]], AnyNetwork]] = {
    "llada": _llada,
    "Dream": lambda config: Dream(DreamConfig.read(config)),
    "llada2_moe": lambda config: Llada2(Llada2Config.read(config)),
    "llada2_moe_veomni": lambda config: Llada2(Llada2Config.read(config)),
    "qwen2": Qwen2.read,
    FAST_DLLM: Qwen2.read,
    **dict.fromkeys(("a2d-qwen3", "sdar", "sdar_moe", "rnd1"), lambda config: Qwen3(Qwen3Config.read(config))),
    "bert": lambda config: Bert(BertConfig.read(config)),
    "roberta": lambda config: Bert(BertConfig.read(config)),
    "albert": lambda config: Bert(BertConfig.read(config)),
    "modernbert": lambda config: ModernBert(ModernBertConfig.read(config)),
}
BUILT_IN = {
    "pocket": "a trained LLaDA of 2 million parameters; it knows the pocket tasks (`tacg tasks`) and nothing else",
    "tiny": "random weights that have learned nothing: the machinery is real, the text is noise",
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MASK_TOKENS = ("<|mdm_mask|>", "<|mask|>", "<|MASK|>", "|<MASK>|", "[MASK]", "<mask>")
MASK_IDS = {"a2d-qwen3": 151669, "sdar": 151669, "sdar_moe": 151669, "rnd1": 151669, FAST_DLLM: 151665}
EDITING = ("delete_token_id", "split_token_id")  # LLaDA2.2's, for edits that are not made here: never to be written
LAYER = re.compile(r"\.(?:layers|blocks)\.(\d+)\.")
OUTPUT_TABLES = ("lm_head.weight", "model.transformer.ff_out.weight")
END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|role_end|>")


def load_checkpoint(
    source: str | Path, *, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu",
    revision: str | None = None, offline: bool = False, tell: Tell | None = None,
) -> tuple[AnyNetwork, Tokenizer]:  # fmt: skip
    """The model, in evaluation mode on its device, and its tokenizer."""
    kind, places = _dtype(dtype), _devices(device)
    directory = locate(source, revision=revision, offline=offline)
    config = _with_block(read_json(directory / "config.json"), source, directory)
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise TacgError(
            f"{directory / 'config.json'}: model_type {short(family)} is not supported. "
            f"Supported: {', '.join(FAMILIES)} (see `tacg models`)."
        )
    with torch.device("meta"):
        model = FAMILIES[family](config)
    _fill(model, directory, kind or _own_dtype(directory, places[0]), Placement.of(model, places), tell)
    tokenizer = Tokenizer(directory)
    if family == "llada" and "<|start_header_id|>" in (tokenizer.chat_template or ""):
        tokenizer.chat_template = LLADA_TEMPLATE  # the shipped one is reported to add the assistant's header always
    model.spec = _spec(str(source), family, config, directory, model, tokenizer)
    return model.eval(), tokenizer


def _with_block(config: Mapping[str, Any], *names: object) -> Mapping[str, Any]:
    """Nothing but its name tells whether a Tiny-A2D checkpoint sees everything (mdlm) or by blocks (bd3lm)."""
    by_blocks = config.get("model_type") == "a2d-qwen3" and any("bd3lm" in str(name) for name in names)
    return {"block_size": 32, **config} if by_blocks else config


def _dtype(name: object) -> torch.dtype | None:
    """The dtype of a name, with or without "torch.", or of itself; None for "auto"."""
    if name == "auto":
        return None
    short = str(name).removeprefix("torch.")
    if not isinstance(name, str | torch.dtype) or short not in DTYPES:
        raise unknown("dtype", short, [*DTYPES, "auto"])
    return DTYPES[short]


def _own_dtype(directory: Path, device: torch.device) -> torch.dtype:
    """What most of the weights are kept in, if the device computes well in it; otherwise float32."""
    bytes_of: dict[str, int] = {}
    for file in _files(directory):
        with _opened(file) as shard:
            for name in shard.keys():  # noqa: SIM118 (not a mapping)
                part = shard.get_slice(name)
                kind = str(part.get_dtype())
                bytes_of[kind] = bytes_of.get(kind, 0) + math.prod(part.get_shape())
    most = max(bytes_of, key=lambda kind: bytes_of[kind], default="F32")
    own = {"BF16": torch.bfloat16, "F16": torch.float16}.get(most, torch.float32)
    return own if is_good_at(device, own) else torch.float32


def _devices(names: object) -> list[torch.device]:
    """One device, or several with commas between: layers are then split over them."""
    found = [_device(name.strip()) for name in names.split(",")] if isinstance(names, str) else [_device(names)]
    if len({place.type for place in found}) > 1 or len({*found}) < len(found):
        raise TacgError(f"`device` must name devices of one kind, each once, got {names!r}.")
    return found


@dataclass(frozen=True)
class Placement:
    """Where tensors go: layers in equal parts to each device in turn, the table of tokens to the first, the rest last.

    A table that is read and written with is in one place, the last.
    """

    devices: list[torch.device]
    layers: int
    tied: bool

    @classmethod
    def of(cls, model: AnyNetwork, devices: list[torch.device]) -> Placement:
        """For this model."""
        layers = sum(isinstance(module, LayerSteps) for module in model.modules())  # masked language models have none
        if len(devices) > max(1, layers):
            raise TacgError(f"{layers} layers cannot be split over {len(devices)} devices.")
        return cls(devices, layers, tied=not any(name in model.state_dict() for name in OUTPUT_TABLES))

    def __call__(self, name: str) -> torch.device:
        """Of the tensor, or module, of this name."""
        layer = LAYER.search(name)
        if layer is not None and self.layers:
            return self.devices[int(layer[1]) * len(self.devices) // self.layers]
        first = not self.tied and any(word in name for word in ("wte", "embed_tokens", "word_embeddings"))
        return self.devices[0 if first else -1]


def _device(name: object) -> torch.device:
    """The device, if something can be put there and computed with; "auto" is the fastest kind that there is."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if not isinstance(name, str | torch.device):
        raise TacgError(f"`device` must be a name such as 'cpu', 'cuda:0' or 'auto', got {name!r}.")
    try:
        place = torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        told = f"The device {str(name)!r} cannot be used here: {why}. `tacg doctor` says what there is."
        raise TacgError(told) from None
    if place.type == "meta":
        raise TacgError("The device 'meta' cannot be used here: it holds shapes and no numbers. Give 'cpu' or 'auto'.")
    return place


def locate(source: str | Path, *, revision: str | None = None, offline: bool = False) -> Path:
    """The checkpoint's directory: a built-in name, a judge, a local directory, or a hub id that is downloaded."""
    if str(source) == "pocket":
        return Path(__file__).parent / "pocket"
    if str(source) == "tiny":
        from tacg.models.tiny import tiny_checkpoint

        return tiny_checkpoint()
    if str(source) in JUDGES and not Path(source).is_dir():
        return judge_checkpoint(str(source))
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise TacgError(f"{path} is a file; a checkpoint is a directory with config.json and *.safetensors.")
    name = str(source)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        near = difflib.get_close_matches(name, [*BUILT_IN, *JUDGES], n=1, cutoff=0.6)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise TacgError(
            f"No checkpoint at {name!r}.{hint} Give a directory, a hub id (owner/name) or one of: "
            f"{', '.join([*BUILT_IN, *JUDGES])}."
        )
    return _download(name, revision, offline)


def _download(hub_id: str, revision: str | None, offline: bool) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.jinja", "*.safetensors", "*.txt"]
    try:
        return Path(snapshot_download(hub_id, revision=revision, local_files_only=offline, allow_patterns=patterns))
    except Exception as error:  # network, rights, names: many types, one remedy
        what = "is not in the local cache" if offline else "could not be downloaded"
        raise TacgError(
            f"{hub_id!r} {what} ({type(error).__name__}: {error}). "
            "Check the name and the network, or give a local directory."
        ) from error


def _fill(model: AnyNetwork, directory: Path, dtype: torch.dtype, placed: Placement, tell: Tell | None) -> None:
    """Put the checkpoint's tensors into a model that was built without storage.

    First all names, shapes and types are compared with config.json; then each tensor is placed as soon as it is read,
    straight from the mapped file. Experts, which come one by one, go to their slice of the stack; on a GPU tables that
    belong together go to their slice of a common one.
    """
    wanted = model.state_dict()
    places = _places(model, directory)
    total, done = sum(size for _, _, size in places.values()), 0
    found = _common_tables(model, dtype, placed)
    for file in _files(directory):
        with _opened(file) as shard:
            for name in shard.keys():  # noqa: SIM118 (not a mapping)
                if name not in places:
                    continue
                target, expert, size = places[name]
                kind = torch.float32 if target.endswith("expert_bias") else dtype
                source, device = shard.get_tensor(name), placed(target)
                if expert is None and target not in found:
                    found[target] = source.to(device=device, dtype=kind)
                else:
                    if target not in found:
                        found[target] = torch.empty(wanted[target].shape, dtype=kind, device=device)
                    (found[target] if expert is None else found[target][expert]).copy_(source)
                if found[target].data_ptr() != source.data_ptr():
                    let_go(source)
                done += size
                if tell is not None:
                    tell(done, total)
    model.load_state_dict(found, assign=True)
    model.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, SideBySide):
            module.settle()


def _common_tables(model: AnyNetwork, dtype: torch.dtype, placed: Placement) -> dict[str, Tensor]:
    """On a GPU: where the tensors go whose tables lie side by side, by name."""
    if placed.devices[0].type != "cuda":
        return {}
    modules = [(prefix, module) for prefix, module in model.named_modules() if isinstance(module, SideBySide)]
    return {
        f"{prefix}.{name}": place
        for prefix, module in modules
        for name, place in module.make_room(dtype, placed(f"{prefix}.")).items()
    }


def _places(model: AnyNetwork, directory: Path) -> dict[str, tuple[str, int | None, int]]:
    """Where every tensor of the files goes (parameter, expert) and its size; raises unless all of it fits."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    places: dict[str, tuple[str, int | None, int]] = {}
    given: dict[str, set[int | None]] = {}
    for file in _files(directory):
        with _opened(file) as shard:
            for name in shard.keys():  # noqa: SIM118 (not a mapping)
                part = shard.get_slice(name)
                place = model.placed(name)
                if place is None:
                    continue
                target, expert = place
                shape, kind = tuple(part.get_shape()), str(part.get_dtype())
                _check_tensor(f"{file.name}: {name!r}", wanted.get(target), expert, shape, kind)
                if expert in given.setdefault(target, set()):
                    raise TacgError(f"{file.name}: {name!r} occurs twice.")
                given[target].add(expert)
                places[name] = target, expert, math.prod(shape) * (4 if kind == "F32" else 2)
    missing = [
        name
        for name, shape in wanted.items()
        if not {None} & given.get(name, set()) and not _all(shape, given.get(name))
    ]
    if missing:
        raise TacgError(
            f"{directory}: {len(missing)} tensor(s) missing from the safetensors files, first {min(missing)!r}."
        )
    return places


def _all(shape: tuple[int, ...], experts: set[int | None] | None) -> bool:
    """Whether every expert of a stack was given."""
    return experts is not None and len(experts) == shape[0]


def _check_tensor(
    what: str, wanted: tuple[int, ...] | None, expert: int | None, shape: tuple[int, ...], kind: str
) -> None:
    """Compare a tensor of a file with the parameter that it is for."""
    if wanted is None:
        raise TacgError(f"{what} is an unexpected tensor; config.json describes no such part.")
    if expert is not None:
        if expert >= wanted[0]:
            raise TacgError(f"{what} is beyond the {wanted[0]} experts of config.json.")
        wanted = wanted[1:]
    if shape != wanted:
        raise TacgError(f"{what} must have shape {wanted}, got {shape}.")
    if not kind.startswith(("F", "BF")):
        raise TacgError(f"{what} must hold floating-point numbers, got {kind}.")


def _files(directory: Path) -> list[Path]:
    """The safetensors files: the shards that the index lists, or all there are."""
    index = directory / "model.safetensors.index.json"
    if is_file(index):
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise TacgError(f"{index} must hold a `weight_map`.")
        files = [directory / Path(str(name)).name for name in sorted({str(name) for name in shards.values()})]
        for file in files:
            if not is_file(file):
                raise TacgError(f"{file} is listed in {index.name} but does not exist; download it again.")
        return files
    files = sorted(file for file in directory.glob("*.safetensors") if is_file(file))
    if not files:
        pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in directory.glob(pattern))
        hint = "is a pickle, which can run code: `tacg convert` reads only its tensors and makes safetensors of them."
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


def _spec(
    name: str, family: str, config: Mapping[str, Any], directory: Path, model: AnyNetwork, tokenizer: Tokenizer
) -> ModelSpec:
    """What the files say about special ids."""
    mask = config.get("mask_token_id")
    if mask is None:
        named = [found for token in MASK_TOKENS if (found := tokenizer.id_of(token)) is not None]
        mask = [*named, MASK_IDS.get(family)][0]
    size = model.config.table_size
    (mask_id,) = [NO_MASK] if family == "qwen2" else _ids("mask_token_id", mask, size)
    nobody = {*range(size)} - tokenizer.owned_ids() | {mask_id} - {NO_MASK}
    nobody |= {each for name in EDITING if type(each := config.get(name)) is int and each < size}
    if isinstance(model, MaskedLM):  # a text has no end there, and special tokens stand around it, never in it
        before, after = tokenizer.frame()
        never = tuple(sorted(nobody | {each for each in tokenizer.special_ids() if each < size}))
        return ModelSpec(
            name, family, size, mask_id, (), never, model.config.max_length, before=before, after=after
        )  # fmt: skip
    ends = config.get("eos_token_id")
    if ends is None:
        ends = read_json(directory / "generation_config.json", missing_ok=True).get("eos_token_id")
    turn_ends = [found for token in END_OF_TURN if (found := tokenizer.id_of(token)) is not None]
    return ModelSpec(
        name=name,
        family=family,
        vocab_size=size,
        mask_id=mask_id,
        eos_ids=tuple(sorted({*_ids("eos_token_id", ends, size), *turn_ends})),
        unwritable=tuple(sorted(nobody)),
        max_length=model.config.max_length,
        logit_shift=getattr(model, "logit_shift", 0),
        causal_block=getattr(model, "block", None),
    )


def _ids(field: str, value: Any, size: int) -> list[int]:
    """An id, or a list of them, from config.json."""
    ids = value if isinstance(value, list) else [value]
    if not ids or not all(type(each) is int and 0 <= each < size for each in ids):
        raise TacgError(f"config.json: `{field}` must be a token id below {size}, got {short(value)}.")
    return ids
