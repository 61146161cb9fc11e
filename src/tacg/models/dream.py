"""Dream natively (Ye et al., "Dream 7B", 2025): a Qwen2 body with bidirectional attention and logits shifted by one.

Also Dream-Coder and DiffuCoder. The raw logits at position i - 1 predict token i. `forward` reads them there, so its
output is aligned like that of every other model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tacg.models.fields import Fields
from tacg.models.layers import FeedForward, Network, QwenLayer, RmsNorm, denoise, prepared
from tacg.models.products import Linear, SideBySide

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tacg.models.base import Span
    from tacg.models.layers import Heads
    from tacg.models.rows import Turns

SUPPORTED = {"hidden_act": "silu", "rope_scaling": None, "use_sliding_window": False, "tie_word_embeddings": False}


@dataclass(frozen=True, slots=True)
class DreamConfig:
    """The fields of Dream's config.json that shape the network."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    table_size: int
    max_length: int
    rope_theta: float
    norm_eps: float

    @classmethod
    def read(cls, config: Mapping[str, Any], family: str = "Dream") -> DreamConfig:
        """From the parsed config.json."""
        fields = Fields(config, family)
        fields.only(SUPPORTED)
        width, heads, kv_heads, _ = fields.heads("hidden_size", "num_attention_heads", "num_key_value_heads")
        return cls(
            width=width,
            layers=fields.size("num_hidden_layers", most=1000),
            heads=heads,
            kv_heads=kv_heads,
            inner=fields.size("intermediate_size"),
            table_size=fields.size("vocab_size"),
            max_length=fields.size("max_position_embeddings"),
            rope_theta=fields.number("rope_theta"),
            norm_eps=fields.number("rms_norm_eps"),
        )


class DreamAttention(SideBySide):
    """Grouped-query attention with biases on queries, keys and values."""

    together = (("q_proj.weight", "k_proj.weight", "v_proj.weight"), ("q_proj.bias", "k_proj.bias", "v_proj.bias"))

    def __init__(self, config: DreamConfig) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.sizes = [config.heads, config.kv_heads, config.kv_heads]
        narrow = config.kv_heads * self.head_dim
        self.q_proj = Linear(config.width, config.width)
        self.k_proj = Linear(config.width, narrow)
        self.v_proj = Linear(config.width, narrow)
        self.o_proj = Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, turns: Turns) -> Heads:
        """[N, D] -> queries, keys and values."""
        heads = self.products(x, "q_proj", "k_proj", "v_proj")
        return prepared(heads, self.sizes, self.head_dim, turns)


class Dream(Network):
    """The network; module names match the checkpoint's tensor names, which are Qwen2's."""

    logit_shift = 1

    def __init__(self, config: DreamConfig) -> None:
        super().__init__()
        self.config = config
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(config.table_size, config.width),
                "layers": nn.ModuleList(
                    QwenLayer(
                        config.width, config.norm_eps, DreamAttention(config), FeedForward(config.width, config.inner)
                    )
                    for _ in range(config.layers)
                ),
                "norm": RmsNorm(config.width, config.norm_eps),
            }
        )
        self.lm_head = Linear(config.width, config.table_size, bias=False)

    def hidden(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Hidden states [P, D] at `select`. A row's first position has no prediction before it and reads its own."""
        parts: Any = self.model
        return denoise(
            tokens, spans, select, embed=parts["embed_tokens"], layers=parts["layers"], norm=parts["norm"],
            rotary=self.config.width // self.config.heads, theta=self.config.rope_theta, block=self.block,
            shift=self.logit_shift,
        )  # fmt: skip
