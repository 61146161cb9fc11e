"""What all families are built of. Tokens of several rows lie end to end, [N, …]; only attention knows rows."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacg.models.base import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.models.base import ModelSpec

# Below this many rows the matrix library takes another code path, with other rounding.
STEADY_ROWS = 16


class RmsNorm(nn.Module):
    """Root-mean-square norm: computed in float32, cast back, then scaled."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[…, D] -> […, D]."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class PackedRows:
    """How packed tokens split into rows: the rotation of each token, and attention within rows.

    spans     of the rows; `block` makes attention block-causal, `window` lets it see so many positions to each side
    rotary    how many dimensions of a head turn with the position
    wide      rotate in float32 (as LLaDA does) rather than in the activations' type
    layers    how many there are
    position  int64 [N], of each token in its row
    """

    def __init__(
        self, spans: Sequence[Span], rotary: int, theta: float, device: torch.device, *,
        wide: bool, block: int | None = None, window: int | None = None, layers: int = 1,
    ) -> None:  # fmt: skip
        self.spans, self.wide, self.layers = spans, wide, layers
        parts = [torch.arange(*part, device=device) for span in spans for part in span.stretches()]
        self.position = position = torch.cat(parts)
        frequency = 1.0 / theta ** (torch.arange(0, rotary, 2, device=device).float() / rotary)
        angle = (position.float()[:, None] * frequency).repeat(1, 2)[:, None, :]
        self.cos, self.sin = angle.cos(), angle.sin()
        plain = block is window is None and all(span.cache is None and not span.shadow[1] for span in spans)
        # Neighbours of equal length attend in one call.
        self.runs = (
            [(len(list(rows)), length) for length, rows in groupby(len(span) for span in spans)] if plain else None
        )
        self.masks = [_visible(span, block, window, device) for span in spans]

    def rotate(self, x: Tensor) -> Tensor:
        """Rotary embedding of x [N, H, D]; dimensions beyond the rotary ones pass through."""
        size = self.cos.shape[-1]
        turned, rest = x[..., :size], x[..., size:]
        kind = torch.float32 if self.wide else x.dtype
        turned, cos, sin = turned.to(kind), self.cos.to(kind), self.sin.to(kind)
        left, right = turned.chunk(2, dim=-1)
        turned = (turned * cos + torch.cat([-right, left], dim=-1) * sin).to(x.dtype)
        return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention within each row. q [N, H, D], k and v [N, KV, D], already rotated -> [N, H * D]."""
        sizes = [rows * length for rows, length in self.runs] if self.runs else [len(span) for span in self.spans]
        parts = zip(*(torch.split(x, sizes) for x in (q, k, v)), strict=True)
        if self.runs:
            mixed = [
                _attention(*(x.unflatten(0, run) for x in part)).flatten(0, 1)
                for run, part in zip(self.runs, parts, strict=True)
            ]
        else:
            mixed = [self._one(layer, *row) for row in zip(self.spans, self.masks, parts, strict=True)]
        if any(span.attention is not None for span in self.spans):
            self._show(layer, q, k)
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    @staticmethod
    def _one(layer: int, span: Span, mask: Tensor | None, part: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """A single row, against its cache if it has one."""
        q, k, v = part
        if span.cache is not None:
            own = len(k) - (span.shadow[1] - span.shadow[0])
            held = [x[: span.reach] for x in span.cache.write(layer, span.start, k[:own], v[:own])]
            k, v = held if own == len(k) else (torch.cat(x) for x in zip(held, (k[own:], v[own:]), strict=True))
        return _attention(q[None], k[None], v[None], mask)[0]

    def _show(self, layer: int, q: Tensor, k: Tensor) -> None:
        """Fill the attention maps that are asked for. Each row by itself, so that neighbours do not matter."""
        sizes = [len(span) for span in self.spans]
        for span, mask, mine, own in zip(self.spans, self.masks, *(torch.split(x, sizes) for x in (q, k)), strict=True):
            asked = span.attention
            if asked is not None and asked.wants(layer, self.layers):
                keys = own if span.cache is None else span.cache.layers[layer][0][: span.reach]
                here = slice(asked.start - span.start, asked.stop - span.start)
                weights = _attention_weights(mine[here], keys, None if mask is None else mask[here])
                asked.add(weights[:, :, asked.start : asked.stop])


def _visible(span: Span, block: int | None, window: int | None, device: torch.device) -> Tensor | None:
    """bool [span, keys]: which keys each position sees (see `Span`). None where all see everything.

    block   only its own block and what is before
    window  only so far to each side
    """
    size = span.shadow[1] - span.shadow[0]
    causal = block is not None and span.start // block != (span.reach - 1) // block
    near = window is not None and max(span.stop - 1, span.reach - 1 - span.start) > window
    if not causal and not near and not size:
        return None
    query = torch.cat([torch.arange(*part, device=device) for part in span.stretches()])
    keys = torch.cat([torch.arange(span.start, device=device), query])
    seen = torch.ones(len(query), len(keys), dtype=torch.bool, device=device)
    if block is not None:
        seen &= keys // block <= query[:, None] // block
    if window is not None:
        seen &= (keys - query[:, None]).abs() <= window
    if size:
        seen[:-size, -size:] = False
        seen[-size:, :-size] &= keys[:-size] != query[-size:, None]
    return seen


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """[B, T, H, D] and keys and values [B, S, KV, D] -> [B, T, H * D]."""
    grouped = q.shape[2] != k.shape[2]
    mixed = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, enable_gqa=grouped
    )
    return mixed.transpose(1, 2).flatten(2)


def _attention_weights(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """What fused attention does not tell: [T, H, D] and keys [S, KV, D] -> probabilities float32 [H, T, S]."""
    queries = q.float().transpose(0, 1).reshape(k.shape[1], -1, q.shape[2])  # heads that share keys side by side
    scores = (queries @ k.float().permute(1, 2, 0)).view(-1, len(q), len(k)) * q.shape[2] ** -0.5
    return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -torch.inf), dim=2)


class Network(nn.Module):
    """What the families have in common: hidden states first, then logits. Subclasses say how, and which table."""

    shows_attention = True
    spec: ModelSpec
    lm_head: nn.Linear

    @property
    def table(self) -> Tensor:
        """The output table [V, D]."""
        return self.lm_head.weight

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.table.device

    def placed(self, name: str) -> tuple[str, int | None] | None:
        """Where a tensor of the checkpoint goes: parameter and expert. None: nowhere."""
        return name, None

    def hidden(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Hidden states [P, D] at `select`, behind the last norm: `head` makes logits of them (see `Denoiser`)."""
        raise NotImplementedError

    def head(self, hidden: Tensor) -> Tensor:
        """[P, D] -> [P, V]."""
        return steady_linear(hidden, self.table)

    def forward(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Logits [P, V] at `select` (see `Denoiser`)."""
        return self.head(self.hidden(tokens, spans, select))


def steady_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[P, D] -> [P, V]. Few rows are filled up, so that rounding does not depend on their number."""
    missing = max(0, STEADY_ROWS - len(x))
    return F.linear(F.pad(x, (0, 0, 0, missing)), weight, bias)[: len(x)]


def steady_rows(tokens: Tensor, spans: Sequence[Span]) -> tuple[Tensor, Sequence[Span]]:
    """Very small batches filled up with a row that nobody reads, so that rounding does not depend on their size."""
    missing = STEADY_ROWS - len(tokens)
    return (F.pad(tokens, (0, missing)), [*spans, Span(0, missing, missing)]) if missing > 0 else (tokens, spans)


def denoise(
    tokens: Tensor, spans: Sequence[Span], select: Tensor, *, embed: nn.Module, layers: nn.Module, norm: nn.Module,
    rotary: int, theta: float, wide: bool = False, block: int | None = None,
) -> Tensor:  # fmt: skip
    """The way of every decoder-like family: embed, pass the layers, norm: hidden states [P, D] at `select`."""
    tokens, spans = steady_rows(tokens, spans)
    depth = sum(1 for _ in layers.children())
    rows = PackedRows(spans, rotary, theta, tokens.device, wide=wide, block=block, layers=depth)
    x = embed(tokens)
    for number, layer in enumerate(layers.children()):
        x = layer(number, x, rows)
    made: Tensor = norm(x[select])
    return made


class QwenLayer(nn.Module):
    """Attention and feed-forward, each behind a norm, under Qwen's names."""

    def __init__(self, width: int, eps: float, attention: nn.Module, feed_forward: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(width, eps)
        self.self_attn = attention
        self.post_attention_layernorm = RmsNorm(width, eps)
        self.mlp = feed_forward

    def forward(self, layer: int, x: Tensor, rows: PackedRows) -> Tensor:
        """[N, D] -> [N, D]."""
        x = x + self.self_attn(layer, self.input_layernorm(x), rows)
        fed: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + fed


class FeedForward(nn.Module):
    """A gated feed-forward under the names that most checkpoints use."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, D]."""
        made: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return made


class Experts(nn.Module):
    """E feed-forwards with their weights stacked: gate_proj and up_proj [E, I, D], down_proj [E, D, I]."""

    def __init__(self, count: int, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Parameter(torch.empty(count, inner, width))
        self.up_proj = nn.Parameter(torch.empty(count, inner, width))
        self.down_proj = nn.Parameter(torch.empty(count, width, inner))

    def forward(self, x: Tensor, chosen: Tensor, weight: Tensor) -> Tensor:
        """x [N, D], experts chosen int64 [N, K] with their weights float32 [N, K] -> [N, D], summed in float32.

        Tokens are sorted by expert, and all experts compute in one call. A device is asked nothing.
        """
        if not self._aligned():
            return self.one_by_one(x, chosen, weight)
        experts, order = chosen.flatten().sort(stable=True)
        every = torch.arange(len(self.gate_proj), device=x.device)
        ends = torch.searchsorted(experts, every, right=True, out_int32=True)
        here = x[order // chosen.shape[1]]
        if x.device.type != "cpu":
            made = torch.empty_like(here).index_copy_(0, order, self._grouped(here, ends))
            return torch.bmm(weight[:, None], made.view(*chosen.shape, -1).float()).squeeze(1).to(x.dtype)
        place, ends = _filled_up(experts, ends)
        made = self._grouped(here.new_zeros(int(ends[-1]), x.shape[1]).index_copy_(0, place, here), ends)[place]
        mixed = torch.zeros(x.shape, dtype=torch.float32)
        return mixed.index_add_(0, order // chosen.shape[1], made * weight.flatten()[order, None]).to(x.dtype)

    def _aligned(self) -> bool:
        """Whether PyTorch has a product of all groups at once (from 2.10 on), and for these sizes."""
        sizes = self.down_proj.shape[1:]
        return hasattr(F, "grouped_mm") and not any(size * self.down_proj.element_size() % 16 for size in sizes)

    def _grouped(self, x: Tensor, ends: Tensor) -> Tensor:
        """x [P, D], in groups that end before `ends` int32 [E] -> [P, D]."""
        gate, up = (F.grouped_mm(x, table.mT, offs=ends) for table in (self.gate_proj, self.up_proj))
        return F.grouped_mm(F.silu(gate) * up, self.down_proj.mT, offs=ends)

    def one_by_one(self, x: Tensor, chosen: Tensor, weight: Tensor) -> Tensor:
        """As `forward`, one expert after another: what it is measured against, and how it goes without the product.

        Few tokens of an expert are filled up, so that rounding does not depend on their number.
        """
        order = chosen.flatten().argsort(stable=True)
        token = order // chosen.shape[1]
        counts = torch.bincount(chosen.flatten(), minlength=len(self.gate_proj)).tolist()
        mixed = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        start = 0
        for expert, count in enumerate(counts):
            if count:
                mine, slots = token[start : start + count], order[start : start + count]
                here = F.pad(x[mine], (0, 0, 0, max(0, STEADY_ROWS - count)))
                inner = F.silu(F.linear(here, self.gate_proj[expert])) * F.linear(here, self.up_proj[expert])
                made = F.linear(inner, self.down_proj[expert])[:count].float()
                mixed.index_add_(0, mine, made * weight.flatten()[slots, None])
                start += count
        return mixed.to(x.dtype)


def _filled_up(groups: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Groups with fewer than `STEADY_ROWS` members filled up: where each member goes, int64 [P], and where they end.

    groups  int64 [P], of each member, ascending; group g ends before `ends` int32 [E]
    """
    counts = ends.diff(prepend=ends.new_zeros(1))
    missing = (STEADY_ROWS - counts).clamp(min=0) * (counts > 0)
    shift = missing.cumsum(0, dtype=torch.int32)
    return torch.arange(len(groups)) + (shift - missing)[groups], ends + shift
