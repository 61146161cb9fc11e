"""Building blocks of all families. Tokens of several rows lie end to end, [N, …]; only attention knows rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacg.models.base import Span
from tacg.models.products import Linear, SideBySide, gated, linear, plus_product
from tacg.models.rows import packed_rows, turn_into, turned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.models.base import ModelSpec
    from tacg.models.dream import DreamAttention
    from tacg.models.quantized import PackedWeight
    from tacg.models.qwen3 import Qwen3Attention
    from tacg.models.rows import PackedRows, Turns

# Below this many rows the matrix library uses another code path, with different rounding.
STEADY_ROWS = 16


class RmsNorm(nn.Module):
    """Root-mean-square norm: computed in float32, cast back, then scaled; on a GPU scaled first, in one kernel."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[…, D] -> […, D]."""
        if x.device.type == "cuda":
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return self.weight * F.rms_norm(x, self.weight.shape, eps=self.eps)


class Network(nn.Module):
    """Common to all families: hidden states first, then logits. Subclasses define the layers and the output table."""

    shows_attention = True
    quantize: str | None = None
    spec: ModelSpec
    lm_head: Linear
    # Of `ModelSpec`: logit_shift, causal_block, sub_block and pads_prompt.
    logit_shift: int = 0
    block: int | None = None
    sub_block: int | None = None
    pads_prompt: bool = False

    def layout(self) -> dict[str, Any]:
        """What the network itself knows of its `ModelSpec`."""
        named = {"logit_shift": self.logit_shift, "causal_block": self.block}
        return {**named, "sub_block": self.sub_block, "pads_prompt": self.pads_prompt}

    @property
    def table(self) -> Tensor:
        """The output table [V, D]."""
        return self.lm_head.weight

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.table.device

    @property
    def kept_bytes(self) -> int:
        """Bytes of the keys and values of one position, in all layers."""
        layers: list[Any] = [each for each in self.modules() if isinstance(getattr(each, "sizes", None), list)]
        values: int = sum(2 * each.sizes[1] * each.head_dim for each in layers)
        return self.table.dtype.itemsize * values

    def placed(self, name: str) -> tuple[str, int | None] | None:
        """Where a tensor of the checkpoint goes: parameter and expert. None: it is not used."""
        return name, None

    def hidden(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Hidden states [P, D] at `select`, after the last norm; `head` computes logits from them (see `Denoiser`)."""
        raise NotImplementedError

    def head(self, hidden: Tensor) -> Tensor:
        """[P, D] -> [P, V]."""
        return steady_linear(hidden, self.table)

    def forward(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Logits [P, V] at `select` (see `Denoiser`)."""
        return self.head(self.hidden(tokens, spans, select))


def steady_linear(x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None = None) -> Tensor:
    """[P, D] -> [P, V]. Small batches are padded, so that rounding does not depend on their size."""
    missing = max(0, STEADY_ROWS - len(x)) if x.device.type == "cpu" else 0
    return linear(F.pad(x, (0, 0, 0, missing)) if missing else x, weight, bias)[: len(x)]


def steady_rows(tokens: Tensor, spans: Sequence[Span]) -> tuple[Tensor, Sequence[Span]]:
    """Pad very small batches with unused rows, so that rounding does not depend on their size."""
    missing = STEADY_ROWS - len(tokens)
    if missing <= 0 or tokens.device.type != "cpu":
        return tokens, spans
    return F.pad(tokens, (0, missing)), [*spans, Span(0, missing, missing)]


# With a `shift` of 1, hidden states are read one position earlier; a row's first position reads its own.
def denoise(
    tokens: Tensor, spans: Sequence[Span], select: Tensor, *, embed: nn.Embedding, layers: Any, norm: nn.Module,
    rotary: int, theta: float, wide: bool = False, block: int | None = None, shift: int = 0,
) -> Tensor:  # fmt: skip
    """The forward of every decoder-like family: embedding, layers, norm -> hidden states [P, D] at `select`."""
    tokens, spans = steady_rows(tokens, spans)
    x, rows = embed(tokens.to(embed.weight.device)), None
    kind = {"wide": wide, "block": block, "window": None, "layers": len(layers)}
    for number, layer in enumerate(layers):
        place = next(layer.parameters()).device  # layers may be on several devices, those of one device consecutive
        if rows is None or rows.device != place:
            x, rows = x.to(place), packed_rows(spans, rotary, theta, device=place, dtype=x.dtype, **kind)
        x = layer(number, x, rows)
    at = select if not shift or rows is None else select - rows.has_before.to(select.device)[select]
    made: Tensor = norm(x.to(select.device)[at])
    return made


class Heads(NamedTuple):
    """Queries [N, H, D], keys and values [N, KV, D], ready for attention; `pair` [N, 2 * KV, D] if both are in one."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    pair: Tensor | None


class Norms(NamedTuple):
    """Norms of queries and of keys; on a GPU also the scales of all heads of both, [H + KV, D]."""

    queries: RmsNorm
    keys: RmsNorm
    scale: Tensor | None


def prepared(parts: list[Tensor], sizes: list[int], dim: int, turns: Turns, norms: Norms | None = None) -> Heads:
    """Heads from products [N, heads * dim], in separate tensors or in one that may be overwritten."""
    parts = [part.view(len(part), -1, dim) for part in parts]
    if len(parts) == 1 and turns.partner is not None:
        return _prepared_in_place(parts[0], sizes, turns, norms)
    q, k, v = parts if len(parts) == 3 else torch.split(parts[0], sizes, dim=1)
    if norms is not None:
        q, k = norms.queries(q), norms.keys(k)
    return Heads(turned(q, turns), turned(k, turns), v, None)


def _prepared_in_place(every: Tensor, sizes: list[int], turns: Turns, norms: Norms | None) -> Heads:
    """The same on a GPU, where all heads are in one tensor."""
    x = out = every[:, : sizes[0] + sizes[1]]
    if norms is not None and norms.scale is not None:
        # Values are normed, too, and discarded: using only a part of the tensor would copy it first.
        x = F.rms_norm(every, every.shape[-1:], eps=norms.queries.eps)[:, : out.shape[1]] * norms.scale
    turn_into(x, out, turns)
    q, k, v = torch.split(every, sizes, dim=1)
    return Heads(q, k, v, every[:, sizes[0] :])


class LayerSteps(SideBySide):
    """A layer in two steps, before and after attention. Only attention knows rows, so each step compiles as a whole.

    head_dim  dimensions of a head
    """

    head_dim: int

    def before(self, x: Tensor, turns: Turns) -> Heads:
        """[N, D] -> queries, keys and values."""
        raise NotImplementedError

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        """[N, D] and the output of attention [N, H * D] -> [N, D]."""
        raise NotImplementedError

    def forward(self, layer: int, x: Tensor, rows: PackedRows) -> Tensor:
        """[N, D] -> [N, D]."""
        return self.after(x, rows.attend(layer, *self.before(x, rows.turns(self.head_dim))))


class QwenLayer(LayerSteps):
    """Attention and feed-forward, each after a norm, under Qwen's names."""

    def __init__(self, width: int, eps: float, attention: DreamAttention | Qwen3Attention, feed_forward: Any) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(width, eps)
        self.self_attn, self.head_dim = attention, attention.head_dim
        self.post_attention_layernorm = RmsNorm(width, eps)
        self.mlp = feed_forward

    def before(self, x: Tensor, turns: Turns) -> Heads:
        """[N, D] -> queries, keys and values."""
        heads: Heads = self.self_attn(self.input_layernorm(x), turns)
        return heads

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        """[N, D] -> [N, D]."""
        x = plus_product(x, self.self_attn.o_proj, mixed)
        fed: Tensor = self.mlp(x, self.post_attention_layernorm(x))
        return fed


class HeadNorms(SideBySide):
    """Attention with norms on the heads of queries and keys. On a GPU both are scaled at once.

    sizes  how many heads queries, keys and values have
    """

    norms: ClassVar[tuple[str, str]] = ("q_norm", "k_norm")
    sizes: list[int]
    head_dim: int
    scale: Tensor | None = None

    def head_norms(self) -> Norms:
        """The norms, ready for `prepared`."""
        return Norms(getattr(self, self.norms[0]), getattr(self, self.norms[1]), self.scale)

    def settle(self) -> None:
        """Repeat the scales for every head."""
        weights = [self.get_parameter(f"{name}.weight") for name in self.norms]
        self.scale = None
        if weights[0].device.type == "cuda":
            rows = [weight.expand(count, -1) for weight, count in zip(weights, self.sizes, strict=False)]
            self.scale = torch.cat(rows)


class FeedForward(SideBySide):
    """A gated feed-forward under the names that most checkpoints use."""

    together = (("gate_proj.weight", "up_proj.weight"),)

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = Linear(width, inner, bias=False)
        self.up_proj = Linear(width, inner, bias=False)
        self.down_proj = Linear(inner, width, bias=False)

    def forward(self, onto: Tensor, x: Tensor) -> Tensor:
        """[N, D] -> [N, D]: `onto` plus the output for x."""
        return plus_product(onto, self.down_proj, self.inner(x))

    def inner(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, I]."""
        return gated(self.products(x, "gate_proj", "up_proj"))
