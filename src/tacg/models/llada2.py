"""LLaDA2.0 natively (Bie et al., "LLaDA2.0: Scaling up Diffusion Language Models to 100B", 2025): block-causal experts.

A Ling-2.0 body: per-head norms on queries and keys, rotation of half of each head, experts chosen by group. A position
sees its own block of 32 and everything before it. Experts are stored stacked; `placed` says where each tensor of the
official checkpoint (and of the merged variant) goes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tacg.errors import TacgError
from tacg.models.experts import Experts
from tacg.models.fields import Fields
from tacg.models.layers import FeedForward, HeadNorms, LayerSteps, Network, RmsNorm, denoise, prepared
from tacg.models.products import Linear, plus, plus_product, wide_product
from tacg.models.routing import route

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tacg.models.base import Span
    from tacg.models.layers import Heads
    from tacg.models.rows import Turns

BLOCK = 32
SUPPORTED = {
    "hidden_act": "silu",
    "score_function": "sigmoid",
    "norm_topk_prob": True,
    "use_qkv_bias": False,
    "use_bias": False,
    "use_rmsnorm": True,
    "use_sliding_window": False,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "norm_head": False,
    "norm_softmax": False,
}


@dataclass(frozen=True, slots=True)
class Llada2Config:
    """The fields of LLaDA2's config.json that shape the network."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    inner: int
    expert_inner: int
    dense_layers: int
    experts: int
    chosen: int
    shared: int
    groups: int
    kept_groups: int
    scaling: float
    table_size: int
    max_length: int
    rope_theta: float
    norm_eps: float

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Llada2Config:
        """From the parsed config.json."""
        fields = Fields(config, "llada2_moe")
        fields.only(SUPPORTED)
        fields.without("expert_capacity", "block_size")
        head_dim = fields.size("head_dim", most=1 << 12)
        made = cls(
            width=fields.size("hidden_size"),
            layers=fields.size("num_hidden_layers", most=1000),
            heads=fields.size("num_attention_heads", most=1 << 12),
            kv_heads=fields.size("num_key_value_heads", most=1 << 12),
            head_dim=head_dim,
            rotary=int(head_dim * fields.number("partial_rotary_factor", 0.5)),
            inner=fields.size("intermediate_size"),
            expert_inner=fields.size("moe_intermediate_size"),
            dense_layers=fields.size("first_k_dense_replace", 0, least=0),
            experts=fields.size("num_experts", most=1 << 14),
            chosen=fields.size("num_experts_per_tok", most=1 << 10),
            shared=fields.size("num_shared_experts", 0, least=0, most=1 << 10),
            groups=fields.size("n_group", 1, most=1 << 10),
            kept_groups=fields.size("topk_group", 1, most=1 << 10),
            scaling=fields.number("routed_scaling_factor", 1.0),
            table_size=fields.size("vocab_size"),
            max_length=fields.size("max_position_embeddings"),
            rope_theta=fields.number("rope_theta"),
            norm_eps=fields.number("rms_norm_eps"),
        )
        made._check()
        return made

    def _check(self) -> None:
        if self.heads % self.kv_heads:
            raise TacgError(
                "config.json: `num_attention_heads` must be a multiple of `num_key_value_heads`, "
                f"got {self.heads} and {self.kv_heads}."
            )
        if self.rotary % 2 or not 2 <= self.rotary <= self.head_dim:
            raise TacgError(
                f"config.json: `partial_rotary_factor` must leave an even part of `head_dim` {self.head_dim}, "
                f"got {self.rotary}."
            )
        if self.experts % self.groups or self.kept_groups > self.groups:
            raise TacgError(
                "config.json: `n_group` must divide `num_experts` and be at least `topk_group`, "
                f"got {self.groups}, {self.experts} and {self.kept_groups}."
            )
        if self.chosen > self.experts // self.groups * self.kept_groups:
            raise TacgError(
                "config.json: `num_experts_per_tok` must not exceed the experts of the kept groups, "
                f"got {self.chosen} of {self.experts // self.groups * self.kept_groups}."
            )


class Llada2Attention(HeadNorms):
    """Grouped-query attention with one projection for queries, keys and values, and norms on queries and keys."""

    norms = ("query_layernorm", "key_layernorm")

    def __init__(self, config: Llada2Config) -> None:
        super().__init__()
        self.sizes = [config.heads, config.kv_heads, config.kv_heads]
        self.head_dim = config.head_dim
        self.query_key_value = Linear(config.width, sum(self.sizes) * config.head_dim, bias=False)
        self.query_layernorm = RmsNorm(config.head_dim, config.norm_eps)
        self.key_layernorm = RmsNorm(config.head_dim, config.norm_eps)
        self.dense = Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(self, x: Tensor, turns: Turns) -> Heads:
        """[N, D] -> queries, keys and values."""
        return prepared([self.query_key_value(x)], self.sizes, self.head_dim, turns, self.head_norms())


class Router(nn.Module):
    """Sigmoid scores; a bias that only affects the choice; groups of experts are chosen first."""

    def __init__(self, config: Llada2Config) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.experts, config.width))
        self.register_buffer("expert_bias", torch.zeros(config.experts))
        self.expert_bias: Tensor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, D] -> experts int64 [N, K] and their weights float32 [N, K]."""
        config = self.config
        return route(
            wide_product(x, self.weight), self.expert_bias, groups=config.groups, kept_groups=config.kept_groups,
            count=config.chosen, scaling=config.scaling,
        )  # fmt: skip


class Llada2Mixture(nn.Module):
    """Chosen experts, and a shared one for all tokens."""

    def __init__(self, config: Llada2Config) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config.experts, config.width, config.expert_inner)
        if config.shared:
            self.shared_experts = FeedForward(config.width, config.expert_inner * config.shared)

    def forward(self, onto: Tensor, x: Tensor) -> Tensor:
        """[N, D] -> [N, D]: `onto` plus the output for x."""
        mixed: Tensor = self.experts(x, *self.gate(x))
        if not hasattr(self, "shared_experts"):
            return plus(onto, mixed)
        alone = x.device.type == "cpu"  # both are summed before they are added to `onto`
        shared: Tensor = self.shared_experts(mixed if alone else onto, x)
        return onto + shared if alone else plus(shared, mixed)


class Layer(LayerSteps):
    """Attention and feed-forward or experts, each after a norm."""

    def __init__(self, config: Llada2Config, number: int) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.width, config.norm_eps)
        self.attention, self.head_dim = Llada2Attention(config), config.head_dim
        self.post_attention_layernorm = RmsNorm(config.width, config.norm_eps)
        dense = number < config.dense_layers
        self.mlp = FeedForward(config.width, config.inner) if dense else Llada2Mixture(config)

    def before(self, x: Tensor, turns: Turns) -> Heads:
        """[N, D] -> queries, keys and values."""
        heads: Heads = self.attention(self.input_layernorm(x), turns)
        return heads

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        """[N, D] -> [N, D]."""
        x = plus_product(x, self.attention.dense, mixed)
        fed: Tensor = self.mlp(x, self.post_attention_layernorm(x))
        return fed


class Llada2(Network):
    """The network; module names match the checkpoint's tensor names, except for the stacked experts."""

    block = BLOCK

    def __init__(self, config: Llada2Config) -> None:
        super().__init__()
        self.config = config
        self.model = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(config.table_size, config.width),
                "layers": nn.ModuleList(Layer(config, number) for number in range(config.layers)),
                "norm": RmsNorm(config.width, config.norm_eps),
            }
        )
        self.lm_head = Linear(config.width, config.table_size, bias=False)

    def placed(self, name: str) -> tuple[str, int | None] | None:
        """Where a tensor of the checkpoint goes: parameter and expert. None: only used in training."""
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        if layer and int(layer[1]) >= self.config.layers:
            return None
        return expert_place(name)

    def hidden(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Hidden states [P, D] at `select`."""
        parts: Any = self.model
        return denoise(
            tokens, spans, select, embed=parts["word_embeddings"], layers=parts["layers"], norm=parts["norm"],
            rotary=self.config.rotary, theta=self.config.rope_theta, block=BLOCK,
        )  # fmt: skip


def expert_place(name: str) -> tuple[str, int | None]:
    """`….experts.7.up_proj.weight` is slice 7 of `….experts.up_proj`; any other name is kept."""
    found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name)
    return (f"{found[1]}.{found[3]}", int(found[2])) if found else (name, None)
