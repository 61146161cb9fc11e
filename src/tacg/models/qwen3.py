"""Qwen3 natively, dense or with experts (Yang et al., "Qwen3 Technical Report", 2025), made bidirectional.

The body of Tiny-A2D, SDAR, TraDo and RND1, and of LLaDA-MoE (Zhu et al., "LLaDA-MoE: A Sparse MoE Diffusion Language
Model", 2025). They differ in attention, full or block-causal, and in whether logits are shifted by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

from tacg.errors import TacgError
from tacg.models.experts import Experts
from tacg.models.fields import Fields, short
from tacg.models.layers import FeedForward, HeadNorms, Network, QwenLayer, RmsNorm, denoise, prepared
from tacg.models.llada2 import expert_place
from tacg.models.products import Linear, plus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tacg.models.base import Span
    from tacg.models.layers import Heads
    from tacg.models.rows import Turns

SUPPORTED = {"hidden_act": "silu", "rope_scaling": None, "attention_bias": False, "use_sliding_window": False}
LLADA_MOE = SUPPORTED | {
    "norm_topk_prob": False,
    "shared_expert_intermediate_size": None,
    "tie_word_embeddings": False,
}
PADS = ("a2d-qwen3",)  # by blocks, a prompt is filled up to whole ones
SHIFTED = ("rnd1",)  # the logits at a position predict the next token
BLOCKS = {"sdar": 4, "sdar_moe": 4}  # used if config.json has no `block_size`


@dataclass(frozen=True, slots=True)
class Qwen3Config:
    """The fields of config.json that shape the network.

    experts       how many there are; 0 for a dense body, whose width is `inner`
    renormalised  whether the weights of the chosen experts add up to 1
    tied          one table for embeddings and output
    block, shift, pads  as in `ModelSpec`: causal_block, logit_shift and pads_prompt
    """

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    expert_inner: int
    experts: int
    chosen: int
    renormalised: bool
    tied: bool
    table_size: int
    max_length: int
    rope_theta: float
    norm_eps: float
    block: int | None = None
    shift: int = 0
    pads: bool = False

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Qwen3Config:
        """From the parsed config.json; a `block_size` there makes attention block-causal."""
        family = str(config.get("model_type"))
        fields = Fields(config, family)
        llada = family == "llada"
        fields.only(LLADA_MOE if llada else SUPPORTED)
        experts = fields.size("num_experts", 0, least=0, most=1 << 14)
        _refuse_mixed_layers(config, experts)
        width, heads = fields.size("hidden_size"), fields.size("num_attention_heads", most=1 << 12)
        block = config.get("block_size") or BLOCKS.get(family)
        made = cls(
            width=width,
            layers=fields.size("num_hidden_layers", most=1000),
            heads=heads,
            kv_heads=fields.size("num_key_value_heads", heads, most=1 << 12),
            head_dim=fields.size("head_dim", width // heads, most=1 << 12),
            inner=0 if experts else fields.size("intermediate_size"),
            expert_inner=_expert_inner(fields, llada=llada) if experts else 0,
            experts=experts,
            chosen=fields.size("num_experts_per_tok", most=1 << 10) if experts else 0,
            renormalised=fields.flag("norm_topk_prob", False),
            tied=fields.flag("tie_word_embeddings", False),
            table_size=fields.size("vocab_size"),
            max_length=fields.size("max_position_embeddings"),
            rope_theta=fields.number("rope_theta"),
            norm_eps=fields.number("rms_norm_eps"),
            block=None if block is None or llada else fields.size("block_size", block),
            shift=int(family in SHIFTED),
            pads=family in PADS and block is not None,
        )
        made._check()
        return made

    def _check(self) -> None:
        if self.heads % self.kv_heads:
            raise TacgError(
                "config.json: `num_attention_heads` must be a multiple of `num_key_value_heads`, "
                f"got {self.heads} and {self.kv_heads}."
            )
        if self.head_dim % 2:
            raise TacgError(f"config.json: `head_dim` must be even, got {self.head_dim}.")
        if self.chosen > self.experts:
            raise TacgError(
                "config.json: `num_experts_per_tok` must be at most `num_experts`, "
                f"got {self.chosen} and {self.experts}."
            )


def _expert_inner(fields: Fields, *, llada: bool) -> int:
    own = fields.config.get("moe_intermediate_size")
    return fields.size("expert_intermediate_size", own) if llada else fields.size("moe_intermediate_size")


def _refuse_mixed_layers(config: Mapping[str, Any], experts: int) -> None:
    """Raise if only some of the layers have experts."""
    frequency = config.get("moe_layer_freq")
    if isinstance(frequency, list) and set(frequency) != {1}:
        raise TacgError(f"config.json: `moe_layer_freq` must be 1 for every layer, got {short(frequency)}.")
    if experts and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
        raise TacgError(
            "config.json: every layer must have experts (`mlp_only_layers` empty, `decoder_sparse_step` 1), got "
            f"{short(config.get('mlp_only_layers'))} and {short(config.get('decoder_sparse_step', 1))}."
        )


class Qwen3Attention(HeadNorms):
    """Grouped-query attention with per-head norms on queries and keys."""

    together = (("q_proj.weight", "k_proj.weight", "v_proj.weight"),)

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.sizes = [config.heads, config.kv_heads, config.kv_heads]
        self.head_dim = config.head_dim
        wide, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = Linear(config.width, wide, bias=False)
        self.k_proj = Linear(config.width, narrow, bias=False)
        self.v_proj = Linear(config.width, narrow, bias=False)
        self.o_proj = Linear(wide, config.width, bias=False)
        self.q_norm = RmsNorm(config.head_dim, config.norm_eps)
        self.k_norm = RmsNorm(config.head_dim, config.norm_eps)

    def forward(self, x: Tensor, turns: Turns) -> Heads:
        """[N, D] -> queries, keys and values."""
        heads = self.products(x, "q_proj", "k_proj", "v_proj")
        return prepared(heads, self.sizes, self.head_dim, turns, self.head_norms())


class Qwen3Mixture(nn.Module):
    """The experts with the largest softmax scores, weighted by these scores, as they are or made to add up to 1."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.chosen, self.renormalised = config.chosen, config.renormalised
        self.gate = Linear(config.width, config.experts, bias=False)
        self.experts = Experts(config.experts, config.width, config.expert_inner)

    def forward(self, onto: Tensor, x: Tensor) -> Tensor:
        """[N, D] -> [N, D]: `onto` plus the output for x."""
        score = F.softmax(self.gate(x).float(), dim=1)
        weight, chosen = score.topk(self.chosen, dim=1)
        if self.renormalised:
            weight = weight / weight.sum(dim=1, keepdim=True)
        return plus(onto, self.experts(x, chosen, weight))


class Qwen3(Network):
    """The network; module names match the checkpoint's tensor names, except for the stacked experts."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.config, self.block, self.logit_shift, self.pads_prompt = config, config.block, config.shift, config.pads
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(config.table_size, config.width),
                "layers": nn.ModuleList(
                    QwenLayer(
                        config.width, config.norm_eps, Qwen3Attention(config),
                        Qwen3Mixture(config) if config.experts else FeedForward(config.width, config.inner),
                    )
                    for _ in range(config.layers)
                ),
                "norm": RmsNorm(config.width, config.norm_eps),
            }
        )  # fmt: skip
        if not config.tied:
            self.lm_head = Linear(config.width, config.table_size, bias=False)

    @property
    def table(self) -> Tensor:
        """The output table [V, D]."""
        parts: Any = self.model
        table: Tensor = parts["embed_tokens"].weight if self.config.tied else self.lm_head.weight
        return table

    def placed(self, name: str) -> tuple[str, int | None] | None:
        """Where a tensor of the checkpoint goes: parameter and expert. None: the second copy of a tied table."""
        return None if self.config.tied and name == "lm_head.weight" else expert_place(name)

    def hidden(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Hidden states [P, D] at `select`."""
        parts: Any = self.model
        return denoise(
            tokens, spans, select, embed=parts["embed_tokens"], layers=parts["layers"], norm=parts["norm"],
            rotary=self.config.head_dim, theta=self.config.rope_theta, block=self.block, shift=self.logit_shift,
        )  # fmt: skip
