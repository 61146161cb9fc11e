"""GGUF files of LLaDA, Dream and LLaDA-MoE, as llama.cpp's converter writes them: weights, config and tokenizer.

Packed weights are unpacked to the requested type as they are read; `quantize` packs them again in its own format. The
converter reorders the rows of LLaDA's queries and keys, because llama.cpp rotates neighbouring pairs there; here the
original order is restored. Dream's and LLaDA-MoE's rows keep their order.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tacg.errors import TacgError, unknown
from tacg.madvise import let_go
from tacg.models.weights import StoredTensor
from tacg.text import PIECES, Tokenizer, byte_pair_backend

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

# From llama.cpp's names to the official ones: outside the layers, and within layer N.
LLADA_NAMES = {
    "token_embd": "model.transformer.wte", "output_norm": "model.transformer.ln_f",
    "output": "model.transformer.ff_out",
    "blk": "model.transformer.blocks",
    "attn_norm": "attn_norm", "attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "attn_out",
    "ffn_norm": "ff_norm", "ffn_gate": "ff_proj", "ffn_up": "up_proj", "ffn_down": "ff_out",
}  # fmt: skip
QWEN_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "blk": "model.layers",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj", "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}  # fmt: skip
# From the file's fields to those of config.json.
LLADA_FIELDS = {
    "d_model": "embedding_length", "n_layers": "block_count", "n_heads": "attention.head_count",
    "n_kv_heads": "attention.head_count_kv", "mlp_hidden_size": "feed_forward_length",
    "max_sequence_length": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}  # fmt: skip
QWEN_FIELDS = {
    "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}  # fmt: skip
MOE_FIELDS = {
    "num_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
    "expert_intermediate_size": "expert_feed_forward_length", "head_dim": "attention.key_length",
}  # fmt: skip
ARCHITECTURES = {
    "llada": ("llada", LLADA_NAMES, LLADA_FIELDS),
    "dream": ("Dream", QWEN_NAMES, QWEN_FIELDS | {"intermediate_size": "feed_forward_length"}),
    "llada-moe": ("llada", QWEN_NAMES, QWEN_FIELDS | MOE_FIELDS),
}
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # kinds of tokens


class GgufFile:
    """A checkpoint in one file; iterating gives its tensors under their official names."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._reader = _opened(place)
        self.architecture = str(self._field("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise unknown(f"architecture in {place}:", self.architecture, ARCHITECTURES)
        if (self._field("split.count") or 1) > 1:
            raise TacgError(f"{place} is one part of several; join them with `llama-gguf-split --merge`.")
        self.family, self._names, self._fields = ARCHITECTURES[self.architecture]

    def __iter__(self) -> Iterator[StoredTensor]:
        for tensor in self._reader.tensors:
            shape = tuple(reversed([int(size) for size in tensor.shape]))
            kind = tensor.tensor_type.name if tensor.tensor_type.name in ("F32", "F16", "BF16") else "BF16"
            order = self._order(tensor.name, shape)

            def read(start: int, stop: int, tensor: Any = tensor, order: Any = order) -> Tensor:
                return self._read(tensor, start, stop, order)

            yield StoredTensor(self.place.name, self._official(tensor.name), shape, kind, read, mapped=False)

    def config(self) -> Mapping[str, Any]:
        """The fields that config.json would have."""
        fields = {name: self._field(f"{self.architecture}.{theirs}") for name, theirs in self._fields.items()}
        theta = self._field(f"{self.architecture}.rope.freq_base")
        names = {tensor.name: tensor for tensor in self._reader.tensors}
        if "token_embd.weight" not in names:
            raise TacgError(f"{self.place} has no tensor 'token_embd.weight'; is it a whole model?")
        eps = fields["rms_norm_eps"]
        return {
            **fields, "model_type": self.family, "rope_theta": 10000.0 if theta is None else _as_written(theta),
            "rms_norm_eps": None if eps is None else _as_written(eps),
            "vocab_size": int(names["token_embd.weight"].shape[1]), "weight_tying": "output.weight" not in names,
            "mask_token_id": self._field("tokenizer.ggml.mask_token_id"),
            "eos_token_id": self._field("tokenizer.ggml.eos_token_id"),
        }  # fmt: skip

    def tokenizer(self) -> Tokenizer:
        """From tokenizer.json next to the file if there is one, else from the file itself."""
        if (self.place.parent / "tokenizer.json").is_file():
            return Tokenizer(self.place.parent)
        from tokenizers import models

        tokens, kinds = self._field("tokenizer.ggml.tokens"), self._field("tokenizer.ggml.token_type")
        merges, rule = self._field("tokenizer.ggml.merges"), self._field("tokenizer.ggml.pre")
        if self._field("tokenizer.ggml.model") != "gpt2" or not tokens or not kinds or merges is None:
            what = "tokens, token types and merges of byte pairs (tokenizer.ggml.*)"
            raise TacgError(f"{self.place} lacks {what}; copy the checkpoint's tokenizer.json next to it.")
        if rule not in PIECES:
            raise TacgError(
                f"{self.place} splits texts by the rule {rule!r}, which is not supported ({', '.join(PIECES)} are); "
                "copy the checkpoint's tokenizer.json next to it."
            )
        owned = {token: number for number, token in enumerate(tokens) if kinds[number] != UNUSED}
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        added = [(tokens[n], kind == CONTROL) for n, kind in enumerate(kinds) if kind in (CONTROL, USER_DEFINED)]
        backend = byte_pair_backend(models.BPE(owned, pairs), rule, added)
        named = {name: self._field(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
        config = {f"{name}_token": tokens[number] for name, number in named.items() if number is not None}
        return Tokenizer.of(backend, config | {"chat_template": self._field("tokenizer.chat_template")})

    def _field(self, name: str) -> Any:
        """A field of the file, or None."""
        field = self._reader.fields.get(name)
        return None if field is None else field.contents()

    def _official(self, name: str) -> str:
        """The official name of a tensor; unknown names are kept, and refused when they are placed."""
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
        if layer and layer[2] in self._names:
            place = f"{self._names['blk']}.{layer[1]}.{self._names[layer[2]]}"
            return place if layer[2].endswith("_exps") else f"{place}.{layer[3]}"
        stem, _, last = name.rpartition(".")
        return f"{self._names[stem]}.{last}" if stem in self._names else name

    def _order(self, name: str, shape: tuple[int, ...]) -> Any:
        """Where the rows of LLaDA's queries and keys are; None where nothing was reordered."""
        field = {"attn_q.weight": "head_count", "attn_k.weight": "head_count_kv"}.get(name.split(".", 2)[-1])
        if self.architecture != "llada" or field is None:
            return None
        heads = self._field(f"llada.attention.{field}") or self._field("llada.attention.head_count")
        if not heads or shape[0] % (2 * heads):
            raise TacgError(f"{self.place}: {name!r} must have a multiple of {2 * (heads or 1)} rows, got {shape[0]}.")
        return np.arange(shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).flatten()

    def _read(self, tensor: Any, start: int, stop: int, order: Any) -> Tensor:
        """Rows [start, stop) as numbers [R, D]; the pages of the file are released."""
        from gguf.quants import dequantize

        rows = tensor.data.reshape(-1, tensor.data.shape[-1])
        part = rows[start:stop] if order is None else rows[order[start:stop]]
        try:
            numbers = np.array(dequantize(part, tensor.tensor_type), dtype=np.float32)
        except NotImplementedError:
            what = tensor.tensor_type.name
            raise TacgError(f"{self.place}: {tensor.name!r} is packed as {what}, which cannot be unpacked.") from None
        let_go(rows if order is not None else part)
        return torch.from_numpy(numbers)


def _opened(place: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise TacgError("GGUF files need the package gguf: pip install 'tacg[gguf]'.") from None
    try:
        return GGUFReader(place)
    except Exception as error:  # damaged files raise many exception types
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise TacgError(f"{place} cannot be read as GGUF ({why}); download it again.") from None


def _as_written(value: float) -> float:
    """The decimal number whose float32 rounding is in the file."""
    return float(f"{value:.7g}")
