"""A LLaDA checkpoint with random weights, small enough to be made on the spot. It has learned nothing."""

from __future__ import annotations

import functools
import json
import string
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tacg.models.llada import Llada, LladaConfig

SPECIALS = [
    "<|endoftext|>",
    "<|mdm_mask|>",
    "<|startoftext|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
SHAPE: dict[str, Any] = {
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
}


def tiny_checkpoint() -> Path:
    """The directory of the tiny checkpoint: written on first use, gone with the process."""
    return write_checkpoint(Path(_scratch().name))


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tacg-tiny-")


def write_checkpoint(directory: Path, *, seed: int = 0, liveliness: float = 8.0, **shape: Any) -> Path:
    """Write a random checkpoint in the official layout. `shape` overrides fields of config.json.

    `liveliness` scales the output head: larger makes the random posteriors more peaked, so that every branch of
    a decoder gets something to do.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokens = SPECIALS + sorted(set(string.printable) - set("\t\r\x0b\x0c"))
    config = SHAPE | {"vocab_size": len(tokens), "mask_token_id": 1, "eos_token_id": 0} | shape
    model = Llada(LladaConfig.read(config))
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, tensor in model.state_dict().items():
        if tensor.dim() == 1:
            weights[name] = torch.ones_like(tensor)
            continue
        scale = 1.0 if "wte" in name else tensor.shape[1] ** -0.5
        if name == "model.transformer.ff_out.weight":
            scale *= liveliness
        elif "q_proj" in name or "k_proj" in name:
            scale *= 2.5  # sharp attention: neighbouring masks see different things
        weights[name] = torch.randn(tensor.shape, generator=generator) * scale
    save_file(weights, directory / "model.safetensors")
    _write_tokenizer(directory, tokens)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return directory


def _write_tokenizer(directory: Path, tokens: list[str]) -> None:
    """One token per printable character; anything else becomes a question mark."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
