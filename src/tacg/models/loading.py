"""From a directory, GGUF file, hub id or built-in name to a model: no pickle, no remote code."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tacg.errors import TacgError, unknown
from tacg.models.base import NO_MASK, ModelSpec
from tacg.models.bert import Bert, BertConfig, MaskedLM
from tacg.models.dream import Dream, DreamConfig
from tacg.models.fields import short
from tacg.models.gguf_file import GgufFile
from tacg.models.judges import JUDGES, judge_checkpoint
from tacg.models.layers import LayerSteps
from tacg.models.llada import Llada, LladaConfig
from tacg.models.llada2 import Llada2, Llada2Config
from tacg.models.modernbert import ModernBert, ModernBertConfig
from tacg.models.products import is_good_at
from tacg.models.quantized import check_kind
from tacg.models.qwen2 import FAST_DLLM, Qwen2
from tacg.models.qwen3 import Qwen3, Qwen3Config
from tacg.models.weights import Safetensors, Unfilled, fill, own_dtype
from tacg.text import LLADA_TEMPLATE, Tokenizer, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tacg.models.weights import Tell

AnyNetwork = Llada | Dream | Llada2 | Qwen3 | Bert | ModernBert


def _llada(config: Mapping[str, Any]) -> AnyNetwork:
    """Two networks have the model_type `llada`; only one of them has experts."""
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
    "pocket-free": "like pocket, for the `free-` tasks: their answers are in free wording, as those of large models",
    "tiny": "random, untrained weights: for tests; its text is noise",
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MASK_TOKENS = ("<|mdm_mask|>", "<|mask|>", "<|MASK|>", "|<MASK>|", "[MASK]", "<mask>")
MASK_IDS = {"a2d-qwen3": 151669, "sdar": 151669, "sdar_moe": 151669, "rnd1": 151669, FAST_DLLM: 151665}
EDITING = ("delete_token_id", "split_token_id")  # LLaDA2.2's tokens for edits, which are not supported: never written
LAYER = re.compile(r"\.(?:layers|blocks)\.(\d+)\.")
OUTPUT_TABLES = ("lm_head.weight", "model.transformer.ff_out.weight")
END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|role_end|>")


def load_checkpoint(
    source: str | Path, *, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu",
    revision: str | None = None, offline: bool = False, tell: Tell | None = None, quantize: str | None = None,
) -> tuple[AnyNetwork, Tokenizer]:  # fmt: skip
    """The model, in evaluation mode on its device, and its tokenizer."""
    kind, places, packing = _dtype(dtype), _devices(device), check_kind(quantize)
    directory = locate(source, revision=revision, offline=offline)
    packed_file = GgufFile(directory) if directory.suffix == ".gguf" and directory.is_file() else None
    config = packed_file.config() if packed_file else read_json(directory / "config.json")
    config = _with_block(config, source, directory)
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise TacgError(
            f"{directory / 'config.json'}: model_type {short(family)} is not supported. "
            f"Supported: {', '.join(FAMILIES)} (see `tacg models`)."
        )
    with Unfilled():
        model = FAMILIES[family](config)
    weights = packed_file or Safetensors(directory)
    if kind is None:
        own = own_dtype(weights)
        kind = own if is_good_at(places[0], own) else torch.float32
    fill(model, weights, kind, Placement.of(model, places), packing, tell)
    tokenizer = packed_file.tokenizer() if packed_file else Tokenizer(directory)
    if family == "llada" and "<|start_header_id|>" in (tokenizer.chat_template or ""):
        tokenizer.chat_template = (
            LLADA_TEMPLATE  # the checkpoint's own is reported to always add the assistant's header
        )
    model.spec = _spec(str(source), family, config, directory, model, tokenizer)
    return model.eval(), tokenizer


def _with_block(config: Mapping[str, Any], *names: object) -> Mapping[str, Any]:
    """Only its name tells whether a Tiny-A2D checkpoint has full attention (mdlm) or is block-causal (bd3lm)."""
    by_blocks = config.get("model_type") == "a2d-qwen3" and any("bd3lm" in str(name) for name in names)
    return {"block_size": 32, **config} if by_blocks else config


def _dtype(name: object) -> torch.dtype | None:
    """The dtype with this name, with or without "torch."; a dtype is returned as it is; None for "auto"."""
    if name == "auto":
        return None
    short = str(name).removeprefix("torch.")
    if not isinstance(name, str | torch.dtype) or short not in DTYPES:
        raise unknown("dtype", short, [*DTYPES, "auto"])
    return DTYPES[short]


def _devices(names: object) -> list[torch.device]:
    """One device, or several separated by commas, over which layers are split."""
    found = [_device(name.strip()) for name in names.split(",")] if isinstance(names, str) else [_device(names)]
    if len({place.type for place in found}) > 1 or len({*found}) < len(found):
        raise TacgError(f"`device` must name devices of one kind, each once, got {names!r}.")
    return found


@dataclass(frozen=True)
class Placement:
    """Where tensors go: layers in equal parts to the devices, the embedding table to the first, the rest to the last.

    A table that is tied to the output is on the last device only.
    """

    devices: list[torch.device]
    layers: int
    tied: bool

    @classmethod
    def of(cls, model: AnyNetwork, devices: list[torch.device]) -> Placement:
        """The placement for this model."""
        layers = sum(isinstance(module, LayerSteps) for module in model.modules())  # masked language models have none
        if len(devices) > max(1, layers):
            raise TacgError(f"{layers} layers cannot be split over {len(devices)} devices.")
        return cls(devices, layers, tied=not any(name in model.state_dict() for name in OUTPUT_TABLES))

    def __call__(self, name: str) -> torch.device:
        """The device of the tensor or module of this name."""
        layer = LAYER.search(name)
        if layer is not None and self.layers:
            return self.devices[int(layer[1]) * len(self.devices) // self.layers]
        first = not self.tied and any(word in name for word in ("wte", "embed_tokens", "word_embeddings"))
        return self.devices[0 if first else -1]


def _device(name: object) -> torch.device:
    """The device, if tensors can be stored and computed there; "auto": the fastest kind available."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if not isinstance(name, str | torch.device):
        raise TacgError(f"`device` must be a name such as 'cpu', 'cuda:0' or 'auto', got {name!r}.")
    try:
        place = torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        told = f"The device {str(name)!r} cannot be used here: {why}. `tacg doctor` lists the devices."
        raise TacgError(told) from None
    if place.type == "meta":
        raise TacgError("The device 'meta' cannot be used here: its tensors have no values. Give 'cpu' or 'auto'.")
    return place


def locate(source: str | Path, *, revision: str | None = None, offline: bool = False) -> Path:
    """The checkpoint's directory: a built-in name, a judge, a local directory, or a hub id that is downloaded."""
    if str(source) in ("pocket", "pocket-free"):
        return Path(__file__).parent / str(source)
    if str(source) == "tiny":
        from tacg.models.tiny import tiny_checkpoint

        return tiny_checkpoint()
    if str(source) in JUDGES and not Path(source).is_dir():
        return judge_checkpoint(str(source))
    path = Path(source).expanduser()
    if path.is_dir() or (path.suffix == ".gguf" and path.is_file()):
        return path
    if path.exists():
        raise TacgError(
            f"{path} is a file; a checkpoint is a directory with config.json and *.safetensors, or a .gguf file."
        )
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
    except Exception as error:  # many exception types (network, permissions, names), one remedy
        what = "is not in the local cache" if offline else "could not be downloaded"
        raise TacgError(
            f"{hub_id!r} {what} ({type(error).__name__}: {error}). "
            "Check the name and the network, or give a local directory."
        ) from error


def _spec(
    name: str, family: str, config: Mapping[str, Any], directory: Path, model: AnyNetwork, tokenizer: Tokenizer
) -> ModelSpec:
    """The facts about special ids in the checkpoint's files."""
    mask = config.get("mask_token_id")
    if mask is None:
        named = [found for token in MASK_TOKENS if (found := tokenizer.id_of(token)) is not None]
        mask = [*named, MASK_IDS.get(family)][0]
    size = model.config.table_size
    (mask_id,) = [NO_MASK] if family == "qwen2" else _ids("mask_token_id", mask, size)
    nobody = {*range(size)} - tokenizer.owned_ids() | {mask_id} - {NO_MASK}
    nobody |= {each for name in EDITING if type(each := config.get(name)) is int and each < size}
    if isinstance(model, MaskedLM):  # there a text has no end token, and special tokens are only around it
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
        **model.layout(),
    )


def _ids(field: str, value: Any, size: int) -> list[int]:
    """An id, or a list of them, from config.json."""
    ids = value if isinstance(value, list) else [value]
    if not ids or not all(type(each) is int and 0 <= each < size for each in ids):
        raise TacgError(f"config.json: `{field}` must be a token id below {size}, got {short(value)}.")
    return ids
