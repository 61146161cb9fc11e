"""ModernBERT natively (Warner et al., 2024): a masked language model with rotary positions and local attention.

Norms come first in a layer. Most layers attend only to a window around each position, every few layers one to all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tacg.errors import TacgError
from tacg.models.bert import ACTIVATIONS, MaskedLM, activation
from tacg.models.fields import Fields, short
from tacg.models.layers import steady_linear, steady_rows
from tacg.models.products import Linear
from tacg.models.rows import packed_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tacg.models.base import Span
    from tacg.models.rows import PackedRows

GLOBAL, LOCAL = "full_attention", "sliding_attention"
# The rest of the names are the checkpoint's own.
NAMES = (
    (r"^model\.embeddings\.tok_embeddings\.", "word."),
    (r"^model\.embeddings\.norm\.", "embedding_norm."),
    (r"^model\.", ""),
    (r"^head\.(dense|norm)\.", r"transform_\1."),
    (r"^decoder\.bias$", "bias"),
)


@dataclass(frozen=True, slots=True)
class ModernBertConfig:
    """The fields of config.json that shape the network.

    kinds   which positions each layer sees: all of them, or `window` to each side
    thetas  base of the rotary frequencies, by kind
    biases  which parts have one: norms, attention, feed-forward, transform, output
    """

    width: int
    heads: int
    inner: int
    kinds: tuple[str, ...]
    thetas: Mapping[str, float]
    window: int
    activation: str
    head_activation: str
    table_size: int
    max_length: int
    norm_eps: float
    norm_bias: bool
    attention_bias: bool
    mlp_bias: bool
    classifier_bias: bool
    decoder_bias: bool

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> ModernBertConfig:
        """From the parsed config.json."""
        fields = Fields(config, "modernbert")
        fields.only({"tie_word_embeddings": True})
        width, heads, _, _ = fields.heads("hidden_size", "num_attention_heads", "num_attention_heads")
        return cls(
            width=width,
            heads=heads,
            inner=fields.size("intermediate_size"),
            kinds=_kinds(config, fields.size("num_hidden_layers", most=1000), fields),
            thetas={GLOBAL: _theta(config, GLOBAL, "global"), LOCAL: _theta(config, LOCAL, "local")},
            window=fields.size("local_attention", 128) // 2,
            activation=activation(config, "hidden_activation"),
            head_activation=activation(config, "classifier_activation"),
            table_size=fields.size("vocab_size"),
            max_length=fields.size("max_position_embeddings"),
            norm_eps=fields.number("norm_eps", 1e-5),
            norm_bias=fields.flag("norm_bias", False),
            attention_bias=fields.flag("attention_bias", False),
            mlp_bias=fields.flag("mlp_bias", False),
            classifier_bias=fields.flag("classifier_bias", False),
            decoder_bias=fields.flag("decoder_bias", True),
        )


def _kinds(config: Mapping[str, Any], layers: int, fields: Fields) -> tuple[str, ...]:
    """The attention of each layer: listed, or full attention in every n-th layer."""
    every = fields.size("global_attn_every_n_layers", 3)
    kinds = config.get("layer_types") or [LOCAL if number % every else GLOBAL for number in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (GLOBAL, LOCAL) for kind in kinds):
        raise TacgError(
            f"config.json: `layer_types` must name one of {GLOBAL}, {LOCAL} for each of {layers} layers, "
            f"got {short(kinds)}."
        )
    return tuple(kinds)


def _theta(config: Mapping[str, Any], kind: str, scope: str) -> float:
    """From `rope_parameters`, or from the older field `global_rope_theta`."""
    rope = config.get("rope_parameters")
    rope = rope.get(kind) if isinstance(rope, dict) else None
    fields = Fields(rope if isinstance(rope, dict) else {}, "modernbert")
    fields.only({"rope_type": "default"})
    default = {"global": 160_000.0, "local": 10_000.0}[scope]
    return fields.number("rope_theta", Fields(config, "modernbert").number(f"{scope}_rope_theta", default))


class ModernBertLayer(nn.Module):
    """Attention and a gated feed-forward, each after a norm; the first layer's first norm is that of the embedding."""

    def __init__(self, config: ModernBertConfig, *, first: bool) -> None:
        super().__init__()
        width, bias = config.width, config.attention_bias
        self.heads, self.activation = config.heads, ACTIVATIONS[config.activation]
        self.attn_norm = nn.Identity() if first else nn.LayerNorm(width, config.norm_eps, bias=config.norm_bias)
        self.attn = nn.ModuleDict({"Wqkv": Linear(width, 3 * width, bias=bias), "Wo": Linear(width, width, bias=bias)})
        self.mlp_norm = nn.LayerNorm(width, config.norm_eps, bias=config.norm_bias)
        self.mlp = nn.ModuleDict(
            {
                "Wi": Linear(width, 2 * config.inner, bias=config.mlp_bias),
                "Wo": Linear(config.inner, width, bias=config.mlp_bias),
            }
        )

    def forward(self, layer: int, x: Tensor, rows: PackedRows) -> Tensor:
        """[N, D] -> [N, D]."""
        q, k, v = self.attn["Wqkv"](self.attn_norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(dim=1)
        x = x + self.attn["Wo"](rows.attend(layer, *rows.rotate(q, k), v))
        value, gate = self.mlp["Wi"](self.mlp_norm(x)).chunk(2, dim=-1)
        made: Tensor = x + self.mlp["Wo"](self.activation(value) * gate)
        return made


class ModernBert(MaskedLM):
    """The network; most module names match the checkpoint's tensor names."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.config = config
        width, eps, bias = config.width, config.norm_eps, config.norm_bias
        self.word = nn.Embedding(config.table_size, width)
        self.embedding_norm = nn.LayerNorm(width, eps, bias=bias)
        self.layers = nn.ModuleList(ModernBertLayer(config, first=not number) for number in range(len(config.kinds)))
        self.final_norm = nn.LayerNorm(width, eps, bias=bias)
        self.transform_dense = Linear(width, width, bias=config.classifier_bias)
        self.transform_norm = nn.LayerNorm(width, eps, bias=bias)
        self.bias = nn.Parameter(torch.zeros(config.table_size)) if config.decoder_bias else None

    def placed(self, name: str) -> tuple[str, int | None] | None:
        """Where a tensor of the checkpoint goes. None: it is tied to the embeddings."""
        if name == "decoder.weight":
            return None
        for old, new in NAMES:
            name = re.sub(old, new, name)
        return name, None

    def hidden(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Hidden states [P, D] at `select`, after the transform."""
        config = self.config
        tokens, spans = steady_rows(tokens, spans)
        rotary, table = config.width // config.heads, self.word.weight
        rows = {
            kind: packed_rows(
                spans,
                rotary,
                theta,
                device=table.device,
                dtype=table.dtype,
                wide=True,
                window=config.window if kind == LOCAL else None,
                layers=len(config.kinds),
            )
            for kind, theta in config.thetas.items()
        }
        x = self.embedding_norm(self.word(tokens))
        for number, (layer, kind) in enumerate(zip(self.layers.children(), config.kinds, strict=True)):
            x = layer(number, x, rows[kind])
        x = self.final_norm(x[select])
        x = steady_linear(x, self.transform_dense.weight, self.transform_dense.bias)
        made: Tensor = self.transform_norm(ACTIVATIONS[config.head_activation](x))
        return made
