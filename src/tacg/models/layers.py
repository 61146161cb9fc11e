"""What all families are built of. Tokens of several rows lie end to end, [N, …]; only attention knows rows."""

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
    from tacg.models.qwen3 import Qwen3Attention
    from tacg.models.rows import PackedRows, Turns

# Below this many rows the matrix library takes another code path, with other rounding.
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
    """What the families have in common: hidden states first, then logits. Subclasses say how, and which table."""

    shows_attention = True
    spec: ModelSpec
    lm_head: Linear

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
    if x.device.type != "cpu":
        return linear(x, weight, bias)
    return linear(F.pad(x, (0, 0, 0, missing)), weight, bias)[: len(x)]


def steady_rows(tokens: Tensor, spans: Sequence[Span]) -> tuple[Tensor, Sequence[Span]]:
    """Very small batches filled up with a row that nobody reads, so that rounding does not depend on their size."""
    missing = STEADY_ROWS - len(tokens)
    if missing <= 0 or tokens.device.type != "cpu":
        return tokens, spans
    return F.pad(tokens, (0, missing)), [*spans, Span(0, missing, missing)]


def denoise(
    tokens: Tensor, spans: Sequence[Span], select: Tensor, *, embed: nn.Module, layers: nn.Module, norm: nn.Module,
    rotary: int, theta: float, wide: bool = False, block: int | None = None, shift: int = 0,
) -> Tensor:  # fmt: skip
    """The way of every decoder-like family: embed, pass the layers, norm: hidden states [P, D] at `select`.

    With a `shift` of 1 they are read one position before; a row's first position reads its own.
    """
    tokens, spans = steady_rows(tokens, spans)
    depth = sum(1 for _ in layers.children())
    x = embed(tokens)
    rows = packed_rows(
        spans, rotary, theta, device=x.device, dtype=x.dtype, wide=wide, block=block, window=None, layers=depth
    )
    for number, layer in enumerate(layers.children()):
        x = layer(number, x, rows)
    made: Tensor = norm(x[select - rows.has_before[select] if shift else select])
    return made


class Heads(NamedTuple):
    """Queries [N, H, D], keys and values [N, KV, D], ready for attention; `pair` [N, 2 * KV, D] if both are in one."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    pair: Tensor | None


def prepared(
    heads: list[Tensor], sizes: list[int], turns: Turns, norms: tuple[RmsNorm, RmsNorm, Tensor | None] | None = None
) -> Heads:
    """Norm and rotate queries and keys.

    heads  queries, keys and values, [N, heads, D] each; or all in one tensor, which may be written to
    sizes  how many heads each of them has
    norms  see `HeadNorms`
    """
    if len(heads) == 1 and turns.partner is not None:
        (every,) = heads
        x = out = every[:, : sizes[0] + sizes[1]]
        if norms is not None:
            # Of values, too, and thrown away: a part of a tensor would be copied first.
            x = F.rms_norm(every, every.shape[-1:], eps=norms[0].eps)[:, : out.shape[1]] * norms[2]
        turn_into(x, out, turns)
        return Heads(*every.split(sizes, dim=1), pair=every[:, sizes[0] :])
    q, k, v = heads if len(heads) == 3 else heads[0].split(sizes, dim=1)
    if norms is not None:
        q, k = norms[0](q), norms[1](k)
    return Heads(turned(q, turns), turned(k, turns), v, None)


class LayerSteps(SideBySide):
    """A layer in two steps, before and after attention. Only attention knows rows, so each step compiles in one piece.

    head_dim  dimensions of a head
    """

    head_dim: int

    def before(self, x: Tensor, turns: Turns) -> Heads:
        """[N, D] -> what attends."""
        raise NotImplementedError

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        """[N, D] and what attention made of it, [N, H * D] -> [N, D]."""
        raise NotImplementedError

    def forward(self, layer: int, x: Tensor, rows: PackedRows) -> Tensor:
        """[N, D] -> [N, D]."""
        return self.after(x, rows.attend(layer, *self.before(x, rows.turns(self.head_dim))))


class QwenLayer(LayerSteps):
    """Attention and feed-forward, each behind a norm, under Qwen's names."""

    def __init__(self, width: int, eps: float, attention: DreamAttention | Qwen3Attention, feed_forward: Any) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(width, eps)
        self.self_attn, self.head_dim = attention, attention.head_dim
        self.post_attention_layernorm = RmsNorm(width, eps)
        self.mlp = feed_forward

    def before(self, x: Tensor, turns: Turns) -> Heads:
        """[N, D] -> what attends."""
        return self.self_attn(self.input_layernorm(x), turns)

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

    def head_norms(self) -> tuple[RmsNorm, RmsNorm, Tensor | None]:
        """Of queries and of keys; on a GPU also the scales of all heads of both, [H + KV, D]."""
        return getattr(self, self.norms[0]), getattr(self, self.norms[1]), self.scale

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
        """[N, D] -> [N, D]: `onto` plus what comes of x."""
        return plus_product(onto, self.down_proj, self.inner(x))

    def inner(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, I]."""
        return gated(self.products(x, "gate_proj", "up_proj"))


class Experts(SideBySide):
    """E feed-forwards with their weights stacked: gate_proj and up_proj [E, I, D], down_proj [E, D, I]."""

    together = (("gate_proj", "up_proj"),)
    numbers: Tensor

    def __init__(self, count: int, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Parameter(torch.empty(count, inner, width))
        self.up_proj = nn.Parameter(torch.empty(count, inner, width))
        self.down_proj = nn.Parameter(torch.empty(count, width, inner))

    def forward(self, x: Tensor, chosen: Tensor, weight: Tensor) -> Tensor:
        """x [N, D], experts chosen int64 [N, K] with their weights float32 [N, K] -> [N, D], summed in float32.

        Tokens are sorted by expert, and all experts compute in one call. A device is asked nothing, and its sum is left
        in float32: see `plus`.
        """
        if not self._aligned():
            return self.one_by_one(x, chosen, weight)
        experts, order = chosen.flatten().sort(stable=True)
        numbers = torch.arange(len(self.gate_proj)) if x.device.type == "cpu" else self.numbers
        ends = torch.searchsorted(experts, numbers, right=True, out_int32=True)
        here = x[order // chosen.shape[1]]
        if x.device.type != "cpu":
            made = torch.empty_like(here).index_copy_(0, order, self._grouped(here, ends))
            return torch.bmm(weight[:, None], made.view(*chosen.shape, -1).float()).squeeze(1)
        place, ends = _filled_up(experts, ends)
        made = self._grouped(here.new_zeros(int(ends[-1]), x.shape[1]).index_copy_(0, place, here), ends)[place]
        mixed = torch.zeros(x.shape, dtype=torch.float32)
        return mixed.index_add_(0, order // chosen.shape[1], made * weight.flatten()[order, None]).to(x.dtype)

    def settle(self) -> None:
        """The numbers of the experts, int64 [E]."""
        self.numbers = torch.arange(len(self.gate_proj), device=self.gate_proj.device)

    def _aligned(self) -> bool:
        """Whether PyTorch has a product of all groups at once (from 2.10 on), and for these sizes."""
        sizes = self.down_proj.shape[1:]
        return hasattr(F, "grouped_mm") and not any(size * self.down_proj.element_size() % 16 for size in sizes)

    def _grouped(self, x: Tensor, ends: Tensor) -> Tensor:
        """x [P, D], in groups that end before `ends` int32 [E] -> [P, D]."""
        tables = [*self.joint.values()] or [self.gate_proj, self.up_proj]
        inner = gated([F.grouped_mm(x, table.mT, offs=ends) for table in tables])
        return F.grouped_mm(inner, self.down_proj.mT, offs=ends)

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
                inner = F.silu(linear(here, self.gate_proj[expert])) * linear(here, self.up_proj[expert])
                made = linear(inner, self.down_proj[expert])[:count].float()
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
