"""Random checkpoints that SGLang can load: the vocabulary has to hold the mask id that SGLang has written down."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tacg.models.tiny import write_checkpoint

LLADA2_MASK, SDAR_MASK = 156895, 151669
QUIET = 0.1  # of the embeddings: masks are all alike, what tells them apart is what attention adds


def llada2(directory: Path) -> tuple[Path, Path]:
    """A tiny LLaDA2 for us, and the same weights with the config.json that SGLang reads without remote code."""
    ours = write_checkpoint(
        directory / "ours", family="llada2", seed=7, liveliness=5.0, vocab_size=157184, mask_token_id=LLADA2_MASK,
        eos_token_id=156892, num_hidden_layers=2, num_experts=8, num_experts_per_tok=2, n_group=1, topk_group=1,
        rope_theta=10000.0, routed_scaling_factor=1.0,  # SGLang leaves the factor out on a CPU
    )  # fmt: skip
    weights = load_file(ours / "model.safetensors")
    weights["model.word_embeddings.weight"] *= QUIET
    save_file(weights, ours / "model.safetensors", metadata={"format": "pt"})
    theirs = directory / "theirs"
    theirs.mkdir()
    (theirs / "model.safetensors").symlink_to(ours / "model.safetensors")
    config = json.loads((ours / "config.json").read_text(encoding="utf-8")) | {
        "architectures": ["LLaDA2MoeModelLM"],
        "model_type": "qwen3_moe",  # any that transformers knows: the fields are what counts
        "score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "norm_topk_prob": True,
        "rotary_dim": 8,
        "use_qk_norm": True,
        "use_bias": False,
        "use_qkv_bias": False,
        "norm_head": False,
        "norm_softmax": False,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "embedding_dropout": 0.0,
        "output_dropout": 0.0,
        "attention_dropout": 0.0,
        "pad_token_id": 156892,
        "torch_dtype": "float32",
    }
    (theirs / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return ours, theirs


def sdar(directory: Path) -> Path:
    """A tiny SDAR, which is a Qwen3 that sees by blocks."""
    shape = {
        "vocab_size": 151936,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
    }
    generator = torch.Generator().manual_seed(11)

    def table(*size: int, scale: float) -> torch.Tensor:
        return torch.randn(*size, generator=generator) * scale

    width, inner, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head
    weights = {
        "model.embed_tokens.weight": table(shape["vocab_size"], width, scale=QUIET),
        "lm_head.weight": table(shape["vocab_size"], width, scale=0.6),
        "model.norm.weight": torch.ones(width),
    }
    matrices = {
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    norms = {"self_attn.q_norm": head, "self_attn.k_norm": head, "input_layernorm": width}
    norms["post_attention_layernorm"] = width
    for layer in range(shape["num_hidden_layers"]):
        here = f"model.layers.{layer}."
        for name, (rows, columns) in matrices.items():
            weights[f"{here}{name}.weight"] = table(rows, columns, scale=columns**-0.5)
        weights |= {f"{here}{name}.weight": torch.ones(size) for name, size in norms.items()}
    directory.mkdir(parents=True)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config = shape | {
        "architectures": ["SDARForCausalLM"],
        "model_type": "qwen3",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "eos_token_id": 151645,
        "bos_token_id": 151643,
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory
