"""The class of `transformers` that is the same network as ours, sharing our weights without a copy.

LLaDA is a Llama, Dream a Qwen2 and Tiny-A2D a Qwen3, all with bidirectional attention. Experts have another layout
there and would have to be copied; tests/parity compares them at small size.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from tacg.models.dream import Dream
from tacg.models.llada import Llada
from tacg.models.qwen3 import Qwen3

if TYPE_CHECKING:
    from torch import nn

LLAMA_NAMES = (
    (r"model\.transformer\.blocks\.(\d+)\.attn_norm", r"model.layers.\1.input_layernorm"),
    (r"model\.transformer\.blocks\.(\d+)\.ff_norm", r"model.layers.\1.post_attention_layernorm"),
    (r"model\.transformer\.blocks\.(\d+)\.([qkv])_proj", r"model.layers.\1.self_attn.\2_proj"),
    (r"model\.transformer\.blocks\.(\d+)\.attn_out", r"model.layers.\1.self_attn.o_proj"),
    (r"model\.transformer\.blocks\.(\d+)\.ff_proj", r"model.layers.\1.mlp.gate_proj"),
    (r"model\.transformer\.blocks\.(\d+)\.up_proj", r"model.layers.\1.mlp.up_proj"),
    (r"model\.transformer\.blocks\.(\d+)\.ff_out", r"model.layers.\1.mlp.down_proj"),
    (r"model\.transformer\.wte", "model.embed_tokens"),
    (r"model\.transformer\.ln_f", "model.norm"),
    (r"model\.transformer\.ff_out", "lm_head"),
)


def vendor_model(model: nn.Module) -> Any:
    """The same network, or None where there is none that takes our weights as they are."""
    config: Any = model.config
    if isinstance(model, Llada):
        found = _built("Llama", config, config.d_model, config.n_layers, config.n_heads, config.n_kv_heads,
                       config.mlp_hidden_size)  # fmt: skip
        names = {name: _llama_name(name) for name in model.state_dict()}
    elif isinstance(model, Dream | Qwen3) and model.block is None and not getattr(config, "experts", 0):
        kind = "Qwen2" if isinstance(model, Dream) else "Qwen3"
        more = {} if kind == "Qwen2" else {"head_dim": config.head_dim}
        found = _built(kind, config, config.width, config.layers, config.heads, config.kv_heads, config.inner, **more)
        names = {name: name for name in model.state_dict()}
    else:
        return None
    weights = {names[name]: tensor for name, tensor in model.state_dict().items()}
    table: torch.Tensor = model.table
    found.load_state_dict({"lm_head.weight": table} | weights, assign=True)
    found.model.rotary_emb = type(found.model.rotary_emb)(found.config).to(table.device)  # built without storage
    return found.eval()


def _llama_name(name: str) -> str:
    """Llama's name for a tensor of LLaDA."""
    return next(re.sub(old, new, name) for old, new in LLAMA_NAMES if re.match(old, name))


def _built(kind: str, config: Any, width: int, layers: int, heads: int, kv_heads: int, inner: int, **more: Any) -> Any:
    """A network of this kind without weights, with bidirectional attention."""
    import transformers

    theirs = getattr(transformers, f"{kind}Config")(
        vocab_size=config.table_size, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, intermediate_size=inner, rms_norm_eps=config.norm_eps,
        max_position_embeddings=config.max_length, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta}, **more,
    )  # fmt: skip
    theirs.is_causal = False
    with torch.device("meta"):
        return getattr(transformers, f"{kind}ForCausalLM")(theirs)
