"""Untrained checkpoints: random weights in the official layouts, written when needed."""

from __future__ import annotations

import functools
import json
import string
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from tacg.models.base import ModelSpec
from tacg.text import LLADA_TEMPLATE

if TYPE_CHECKING:
    from tacg.models.loading import AnyNetwork

SPECIALS = [
    "<|endoftext|>",
    "<|mdm_mask|>",
    "<|startoftext|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]
QWEN3: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 160,
    "max_position_embeddings": 1024,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
}
QWEN3_EXPERTS: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
SHAPES: dict[str, dict[str, Any]] = {
    "llada": {
        "model_type": "llada",
        "d_model": 64,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 4,
        "mlp_hidden_size": 192,
        "max_sequence_length": 1024,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "weight_tying": False,
    },
    "dream": {
        "model_type": "Dream",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 160,
        "max_position_embeddings": 1024,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
    },
    "llada2": {
        "model_type": "llada2_moe",
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        "intermediate_size": 160,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "num_shared_experts": 1,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "max_position_embeddings": 1024,
        "rope_theta": 600000.0,
        "rms_norm_eps": 1e-6,
    },
    "qwen2": {
        "model_type": "qwen2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 160,
        "max_position_embeddings": 1024,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    },
    "fast-dllm-v2": {
        "model_type": "Fast_dLLM_Qwen",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 160,
        "bd_size": 32,
        "max_position_embeddings": 1024,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    },
    "a2d": {"model_type": "a2d-qwen3", "tie_word_embeddings": True, **QWEN3},
    "sdar": {"model_type": "sdar", "block_size": 4, **QWEN3},
    "sdar-moe": {"model_type": "sdar_moe", "block_size": 4, "norm_topk_prob": True, **QWEN3, **QWEN3_EXPERTS},
    "rnd1": {"model_type": "rnd1", "norm_topk_prob": True, **QWEN3, **QWEN3_EXPERTS},
    "llada-moe": {
        "model_type": "llada",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "expert_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 1024,
        "rope_theta": 50000.0,
        "rms_norm_eps": 1e-5,
    },
}


def tiny_checkpoint() -> Path:
    """The directory of the tiny checkpoint: written on first use, deleted when the process ends."""
    return write_checkpoint(Path(_scratch().name))


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tacg-tiny-")


def write_checkpoint(
    directory: Path, *, family: str = "llada", seed: int = 0, liveliness: float = 8.0, **shape: Any
) -> Path:
    """Write a random checkpoint in a family's official layout. `shape` overrides fields of config.json.

    `liveliness` scales the output head: a larger value makes the random posteriors more peaked, so that every branch
    of a decoder is exercised.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokens = SPECIALS + sorted(set(string.printable) - set("\t\r\x0b\x0c"))
    config = SHAPES[family] | {"vocab_size": len(tokens), "mask_token_id": 1, "eos_token_id": 0} | shape
    model = _network(config, seed, liveliness)
    weights: dict[str, torch.Tensor] = {}
    for name, made in model.state_dict().items():
        if made.dim() == 3:  # experts are stacked here, but separate in the files
            stem, _, part = name.rpartition(".")
            weights |= {f"{stem}.{number}.{part}.weight": each.clone() for number, each in enumerate(made)}
        else:
            weights[name] = made
    save_file(weights, directory / "model.safetensors")
    _write_tokenizer(directory, tokens)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return directory


def random_model(family: str, *, seed: int = 0, liveliness: float = 8.0, **shape: Any) -> AnyNetwork:
    """A random model without files, for measurements; `shape` overrides fields of config.json."""
    config = SHAPES[family] | {"vocab_size": 128} | shape
    model = _network(config, seed, liveliness)
    model.spec = ModelSpec(
        f"random {family}", family, 128, 1, (0,), (1,), model.config.max_length, **model.layout()
    )  # fmt: skip
    return model.eval().requires_grad_(False)


def _network(config: dict[str, Any], seed: int, liveliness: float) -> AnyNetwork:
    from tacg.models.loading import FAMILIES

    with torch.device("meta"):
        model = FAMILIES[config["model_type"]](config)
    generator = torch.Generator().manual_seed(seed)
    state = model.state_dict()
    state = {name: _random(name, tuple(each.shape), liveliness, generator) for name, each in state.items()}
    model.load_state_dict(state, assign=True)
    return model


def _random(name: str, shape: tuple[int, ...], liveliness: float, generator: torch.Generator) -> torch.Tensor:
    """Random weights, scaled so that activations neither vanish nor explode."""
    if len(shape) == 1:
        if name.endswith("bias"):
            return torch.randn(shape, generator=generator) * 0.1
        return torch.ones(shape)
    scale = 1.0 if "wte" in name or "embed" in name else float(shape[-1]) ** -0.5
    if name in ("model.transformer.ff_out.weight", "lm_head.weight"):
        scale *= liveliness
    elif "q_proj" in name or "k_proj" in name or "query_key_value" in name:
        scale *= 2.5  # sharp attention, so that neighbouring masks get different predictions
    return torch.randn(shape, generator=generator) * scale


def _write_tokenizer(directory: Path, tokens: list[str]) -> None:
    """One token per printable character; anything else becomes a question mark."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "chat_template": LLADA_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
