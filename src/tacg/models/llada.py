"""LLaDA natively (Nie et al., "Large Language Diffusion Models", 2025): a bidirectional Llama body.

Also LLaDA-1.5, which differs in weights only. Tensor names are the official checkpoint's, so nothing is renamed.
On the CPUs that we measured, a row's logits do not depend on its neighbours, to the last bit, if `mlp_hidden_size` is a
multiple of 32 (docs/log.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tacg.models.fields import Fields
from tacg.models.layers import LayerSteps, Network, RmsNorm, denoise, prepared
from tacg.models.products import Linear, gated, plus_product

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tacg.models.base import Span
    from tacg.models.layers import Heads
    from tacg.models.rows import Turns

# Switches of the official config that change the network, with the only value that this file implements.
SUPPORTED = {
    "block_type": "llama",
    "block_group_size": 1,
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "alibi": False,
    "rope": True,
}


@dataclass(frozen=True, slots=True)
class LladaConfig:
    """The fields of LLaDA's config.json that shape the network."""

    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    mlp_hidden_size: int
    table_size: int
    max_length: int
    rope_theta: float
    norm_eps: float
    tied: bool

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> LladaConfig:
        """From the parsed config.json; switches that are not implemented raise by name."""
        fields = Fields(config, "llada")
        fields.only(SUPPORTED)
        width, heads, kv_heads, _ = fields.heads("d_model", "n_heads", "n_kv_heads")
        return cls(
            d_model=width,
            n_layers=fields.size("n_layers", most=1000),
            n_heads=heads,
            n_kv_heads=kv_heads,
            mlp_hidden_size=fields.size("mlp_hidden_size"),
            table_size=fields.size("embedding_size", fields.size("vocab_size")),
            max_length=fields.size("max_sequence_length"),
            rope_theta=fields.number("rope_theta"),
            norm_eps=fields.number("rms_norm_eps"),
            tied=fields.flag("weight_tying", False),
        )


class LladaLayer(LayerSteps):
    """Attention and a gated feed-forward, each after a norm. `ff_proj` is the gate, as in the checkpoint."""

    together = (("q_proj.weight", "k_proj.weight", "v_proj.weight"), ("ff_proj.weight", "up_proj.weight"))

    def __init__(self, config: LladaConfig) -> None:
        super().__init__()
        width, inner = config.d_model, config.mlp_hidden_size
        self.head_dim = width // config.n_heads
        self.sizes = [config.n_heads, config.n_kv_heads, config.n_kv_heads]
        narrow = config.n_kv_heads * self.head_dim
        self.attn_norm = RmsNorm(width, config.norm_eps)
        self.q_proj = Linear(width, width, bias=False)
        self.k_proj = Linear(width, narrow, bias=False)
        self.v_proj = Linear(width, narrow, bias=False)
        self.attn_out = Linear(width, width, bias=False)
        self.ff_norm = RmsNorm(width, config.norm_eps)
        self.ff_proj = Linear(width, inner, bias=False)
        self.up_proj = Linear(width, inner, bias=False)
        self.ff_out = Linear(inner, width, bias=False)

    def before(self, x: Tensor, turns: Turns) -> Heads:
        """[N, D] -> queries, keys and values."""
        heads = self.products(self.attn_norm(x), "q_proj", "k_proj", "v_proj")
        return prepared(heads, self.sizes, self.head_dim, turns)

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        """[N, D] -> [N, D]."""
        x = plus_product(x, self.attn_out, mixed)
        return plus_product(x, self.ff_out, gated(self.products(self.ff_norm(x), "ff_proj", "up_proj")))


class Llada(Network):
    """The network; module names match the checkpoint's tensor names."""

    def __init__(self, config: LladaConfig) -> None:
        super().__init__()
        self.config = config
        parts: dict[str, nn.Module] = {
            "wte": nn.Embedding(config.table_size, config.d_model),
            "blocks": nn.ModuleList(LladaLayer(config) for _ in range(config.n_layers)),
            "ln_f": RmsNorm(config.d_model, config.norm_eps),
        }
        if not config.tied:
            parts["ff_out"] = Linear(config.d_model, config.table_size, bias=False)
        self.model = nn.ModuleDict({"transformer": nn.ModuleDict(parts)})

    @property
    def table(self) -> Tensor:
        """The output table [V, D]."""
        parts: Any = self.model["transformer"]
        table: Tensor = (parts["wte"] if self.config.tied else parts["ff_out"]).weight
        return table

    def hidden(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Hidden states [P, D] at `select`."""
        parts: Any = self.model["transformer"]
        return denoise(
            tokens, spans, select, embed=parts["wte"], layers=parts["blocks"], norm=parts["ln_f"],
            rotary=self.config.d_model // self.config.n_heads, theta=self.config.rope_theta, wide=True,
        )  # fmt: skip
