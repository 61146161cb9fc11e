"""LLaDA natively (Nie et al., "Large Language Diffusion Models", 2025): a Llama body that looks both ways.

Also LLaDA-1.5, which differs in weights only. Tensor names are the official checkpoint's, so nothing is renamed.
Rows are packed end to end. Linear layers see all tokens at once, attention sees each row by itself: no padding is
computed, and on the CPUs we measured a row's logits do not depend on its neighbours, to the last bit, as long as
`mlp_hidden_size` is a multiple of 32 (docs/log.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tacg.models.base import ModelSpec

# Below this many rows the matrix library takes another code path, with other rounding.
STEADY_ROWS = 16

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
        for field, value in SUPPORTED.items():
            if config.get(field, value) not in (value, None):
                raise TacgError(
                    f"config.json: `{field}` must be {value!r} for model_type 'llada', got {config[field]!r}."
                )
        try:
            heads = int(config["n_heads"])
            made = cls(
                d_model=int(config["d_model"]),
                n_layers=int(config["n_layers"]),
                n_heads=heads,
                n_kv_heads=int(config.get("n_kv_heads") or heads),
                mlp_hidden_size=int(config["mlp_hidden_size"]),
                table_size=int(config.get("embedding_size") or config["vocab_size"]),
                max_length=int(config["max_sequence_length"]),
                rope_theta=float(config["rope_theta"]),
                norm_eps=float(config["rms_norm_eps"]),
                tied=bool(config.get("weight_tying", False)),
            )
        except KeyError as error:
            raise TacgError(f"config.json: `{error.args[0]}` is missing; model_type 'llada' needs it.") from None
        except (TypeError, ValueError) as error:
            raise TacgError(f"config.json: a field of model_type 'llada' has the wrong type: {error}.") from None
        made._check()
        return made

    def _check(self) -> None:
        sizes = (
            self.d_model,
            self.n_layers,
            self.n_heads,
            self.n_kv_heads,
            self.mlp_hidden_size,
            self.table_size,
        )
        if min(sizes) < 1:
            raise TacgError(f"config.json: every size must be >= 1, got {self}.")
        if self.d_model % self.n_heads or self.d_model // self.n_heads % 2:
            raise TacgError(
                f"config.json: `d_model` must be an even multiple of `n_heads`, got {self.d_model} and {self.n_heads}."
            )
        if self.n_heads % self.n_kv_heads:
            raise TacgError(
                f"config.json: `n_heads` must be a multiple of `n_kv_heads`, got {self.n_heads} and {self.n_kv_heads}."
            )


class RmsNorm(nn.Module):
    """Root-mean-square norm: computed in float32, cast back, then scaled."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, D]."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in float32, as LLaDA does it. x [N, H, D], cos and sin [N, 1, D]."""
    wide = x.float()
    left, right = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat([-right, left], dim=-1) * sin).to(x.dtype)


class Packing:
    """How a packed batch splits into runs of rows of one length, and the rotation of every token."""

    def __init__(self, lengths: Sequence[int], head_dim: int, theta: float, device: torch.device) -> None:
        self.runs = [(len(list(rows)), length) for length, rows in groupby(lengths)]
        position = torch.cat([torch.arange(length, device=device) for length in lengths]).float()
        frequency = 1.0 / theta ** (torch.arange(0, head_dim, 2, device=device).float() / head_dim)
        angle = (position[:, None] * frequency).repeat(1, 2)[:, None, :]
        self.cos, self.sin = angle.cos(), angle.sin()

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Full attention within each row. q [N, H, D], k and v [N, KV, D] -> [N, H * D]."""
        sizes = [rows * length for rows, length in self.runs]
        parts = zip(self.runs, *(x.split(sizes) for x in (q, k, v)), strict=True)
        mixed = [_attention(*(x.unflatten(0, run) for x in part)).flatten(0, 1) for run, *part in parts]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[B, T, H, D] -> [B, T, H * D]."""
    grouped = q.shape[2] != k.shape[2]
    mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), enable_gqa=grouped)
    return mixed.transpose(1, 2).flatten(2)


class Block(nn.Module):
    """Attention and a gated feed-forward, each behind a norm. `ff_proj` is the gate, as in the checkpoint."""

    def __init__(self, config: LladaConfig) -> None:
        super().__init__()
        width, inner = config.d_model, config.mlp_hidden_size
        self.head_dim = width // config.n_heads
        narrow = config.n_kv_heads * self.head_dim
        self.attn_norm = RmsNorm(width, config.norm_eps)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, narrow, bias=False)
        self.v_proj = nn.Linear(width, narrow, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.ff_norm = RmsNorm(width, config.norm_eps)
        self.ff_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.ff_out = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, packing: Packing) -> Tensor:
        """[N, D] -> [N, D]."""
        normed = self.attn_norm(x)
        q, k, v = (proj(normed).unflatten(-1, (-1, self.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, packing.cos, packing.sin), rotate(k, packing.cos, packing.sin)
        mixed: Tensor = self.attn_out(packing.attend(q, k, v))
        x = x + mixed
        normed = self.ff_norm(x)
        fed: Tensor = self.ff_out(F.silu(self.ff_proj(normed)) * self.up_proj(normed))
        return x + fed


class Llada(nn.Module):
    """The network; module names spell the checkpoint's tensor names."""

    spec: ModelSpec

    def __init__(self, config: LladaConfig) -> None:
        super().__init__()
        self.config = config
        parts: dict[str, nn.Module] = {
            "wte": nn.Embedding(config.table_size, config.d_model),
            "blocks": nn.ModuleList(Block(config) for _ in range(config.n_layers)),
            "ln_f": RmsNorm(config.d_model, config.norm_eps),
        }
        if not config.tied:
            parts["ff_out"] = nn.Linear(config.d_model, config.table_size, bias=False)
        self.model = nn.ModuleDict({"transformer": nn.ModuleDict(parts)})

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def forward(self, tokens: Tensor, lengths: Sequence[int], select: Tensor) -> Tensor:
        """Logits [P, V] at `select` (see `Denoiser`)."""
        count = len(select)
        if tokens.shape[0] < STEADY_ROWS:  # one more row that nobody reads
            filler = STEADY_ROWS - tokens.shape[0]
            tokens, lengths = F.pad(tokens, (0, filler)), [*lengths, filler]
        if count < STEADY_ROWS:
            select = F.pad(select, (0, STEADY_ROWS - count))
        parts: Any = self.model["transformer"]
        packing = Packing(lengths, parts["blocks"][0].head_dim, self.config.rope_theta, tokens.device)
        x = parts["wte"](tokens)
        for block in parts["blocks"]:
            x = block(x, packing)
        head = parts["wte"] if self.config.tied else parts["ff_out"]
        return F.linear(parts["ln_f"](x[select]), head.weight)[:count]
