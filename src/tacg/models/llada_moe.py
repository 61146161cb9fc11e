"""LLaDA-MoE natively (Zhu et al., "LLaDA-MoE: A Sparse MoE Diffusion Language Model", 2025): Qwen3-MoE, both ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

from tacg.errors import TacgError
from tacg.models.fields import Fields, short
from tacg.models.layers import Experts, Network, QwenLayer, RmsNorm, denoise
from tacg.models.llada2 import expert_place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tacg.models.base import Span
    from tacg.models.rows import PackedRows

SUPPORTED = {
    "hidden_act": "silu",
    "rope_scaling": None,
    "attention_bias": False,
    "norm_topk_prob": False,
    "shared_expert_intermediate_size": None,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True)
class LladaMoeConfig:
    """The fields of LLaDA-MoE's config.json that shape the network."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    expert_inner: int
    experts: int
    chosen: int
    table_size: int
    max_length: int
    rope_theta: float
    norm_eps: float

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> LladaMoeConfig:
        """From the parsed config.json."""
        fields = Fields(config, "llada")
        fields.only(SUPPORTED)
        frequency = config.get("moe_layer_freq")
        if isinstance(frequency, list) and set(frequency) != {1}:
            raise TacgError(f"config.json: `moe_layer_freq` must be 1 for every layer, got {short(frequency)}.")
        width, heads, kv_heads, head_dim = fields.heads("hidden_size", "num_attention_heads", "num_key_value_heads")
        made = cls(
            width=width,
            layers=fields.size("num_hidden_layers", most=1000),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=fields.size("head_dim", head_dim, most=1 << 12),
            expert_inner=fields.size("expert_intermediate_size", config.get("moe_intermediate_size")),
            experts=fields.size("num_experts", most=1 << 14),
            chosen=fields.size("num_experts_per_tok", most=1 << 10),
            table_size=fields.size("vocab_size"),
            max_length=fields.size("max_position_embeddings"),
            rope_theta=fields.number("rope_theta"),
            norm_eps=fields.number("rms_norm_eps"),
        )
        if made.chosen > made.experts:
            raise TacgError(
                "config.json: `num_experts_per_tok` must be at most `num_experts`, "
                f"got {made.chosen} and {made.experts}."
            )
        return made


class LladaMoeAttention(nn.Module):
    """Attention with per-head norms on queries and keys."""

    def __init__(self, config: LladaMoeConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        wide, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.width, wide, bias=False)
        self.k_proj = nn.Linear(config.width, narrow, bias=False)
        self.v_proj = nn.Linear(config.width, narrow, bias=False)
        self.o_proj = nn.Linear(wide, config.width, bias=False)
        self.q_norm = RmsNorm(config.head_dim, config.norm_eps)
        self.k_norm = RmsNorm(config.head_dim, config.norm_eps)

    def forward(self, layer: int, x: Tensor, rows: PackedRows) -> Tensor:
        """[N, D] -> [N, D]."""
        q, k, v = (proj(x).unflatten(-1, (-1, self.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rows.rotate(self.q_norm(q), self.k_norm(k))
        mixed: Tensor = self.o_proj(rows.attend(layer, q, k, v))
        return mixed


class LladaMoeMixture(nn.Module):
    """The experts with the largest softmax scores, weighted by these scores as they are."""

    def __init__(self, config: LladaMoeConfig) -> None:
        super().__init__()
        self.chosen = config.chosen
        self.gate = nn.Linear(config.width, config.experts, bias=False)
        self.experts = Experts(config.experts, config.width, config.expert_inner)

    def forward(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, D]."""
        score = F.softmax(self.gate(x).float(), dim=1)
        weight, chosen = score.topk(self.chosen, dim=1)
        mixed: Tensor = self.experts(x, chosen, weight)
        return mixed


class LladaMoe(Network):
    """The network; module names spell the checkpoint's tensor names, but for the stacked experts."""

    def __init__(self, config: LladaMoeConfig) -> None:
        super().__init__()
        self.config = config
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(config.table_size, config.width),
                "layers": nn.ModuleList(
                    QwenLayer(config.width, config.norm_eps, LladaMoeAttention(config), LladaMoeMixture(config))
                    for _ in range(config.layers)
                ),
                "norm": RmsNorm(config.width, config.norm_eps),
            }
        )
        self.lm_head = nn.Linear(config.width, config.table_size, bias=False)

    def placed(self, name: str) -> tuple[str, int | None] | None:
        """Where a tensor of the checkpoint goes: parameter and expert."""
        return expert_place(name)

    def hidden(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Hidden states [P, D] at `select`."""
        parts: Any = self.model
        return denoise(
            tokens, spans, select, embed=parts["embed_tokens"], layers=parts["layers"], norm=parts["norm"],
            rotary=self.config.head_dim, theta=self.config.rope_theta,
        )  # fmt: skip
