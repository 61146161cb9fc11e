"""The network of LLaDA for training on a CPU: the same numbers as the package's, in fewer passes over memory.

A small network spends most of its time outside of matrix products. Here queries, keys and values are one product, and
so are gate and up. Norms, the gate and attention have backward passes written by hand. Everything between two products
is in the type that the CPU multiplies fastest; only the residual stream stays in float32. The last layer is computed
only where logits are wanted.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import torch
from muon import FAST
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from tacg.models.llada import Llada

STEP = 256  # The matrix library compiles each product anew for every number of tokens, so there are only few.
Runs = list[tuple[int, int]]  # neighbouring rows of equal length: how many, and how long


class _Norm(torch.autograd.Function):
    """float32 [N, D] -> each row divided by its root mean square, rounded. The scale is part of the next product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        inverse = size.square_().div_(x.shape[1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, inverse)
        return (x * inverse).to(FAST)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, inverse = ctx.saved_tensors
        wide = grad.float()
        along = torch.linalg.vecdot(wide, x)[:, None].mul_(inverse.pow(3)).div_(-x.shape[1])
        return wide.mul_(inverse).addcmul_(x, along), None


class _Gate(torch.autograd.Function):
    """Gate and up side by side [N, 2 * I] -> SiLU(gate) * up [N, I]."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=1)
        gate = gate.contiguous()  # SiLU is a third faster on it
        opened = F.silu(gate)
        ctx.save_for_backward(gate, up, opened)
        return opened * up

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        gate, up, opened = ctx.saved_tensors
        return torch.cat([torch.ops.aten.silu_backward(grad * up, gate), grad * opened], dim=1)


class _Attention(torch.autograd.Function):
    """Queries, keys and values side by side [N, 3 * H * D] -> what attention mixes [N, H * D].

    Softmax is in float32: in bfloat16 it is three times slower. Its results are kept for the backward pass, which is
    affordable because rows are short.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, turns: Tensor, runs: Runs) -> Tensor:
        x, sizes, kept = x.view(len(x), 3, -1, 2 * turns.shape[1]), [math.prod(run) for run in runs], list[Tensor]()
        made = x.new_zeros(len(x), 1, *x.shape[2:])  # zeros for the padding, which is in no run
        parts = x[: sum(sizes)].split(sizes), made[: sum(sizes)].split(sizes)
        for run, part, place in zip(runs, *parts, strict=True):
            heads = _heads(part, run)
            _turn(heads[:2], turns[: run[1]])
            q, k, v = heads
            scores = torch.bmm(q, k.mT).float()
            weights = torch.softmax(scores, dim=2).to(FAST)
            mixed = torch.bmm(weights, v)
            _put(mixed[None], place, run)
            kept += [q, k, v, weights, mixed]
        ctx.save_for_backward(turns, *kept)
        ctx.runs = runs
        return made.flatten(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        turns, *kept = ctx.saved_tensors
        sizes, back = [math.prod(run) for run in ctx.runs], turns.conj().resolve_conj()
        grad = grad.view(len(grad), 1, -1, 2 * turns.shape[1])
        made = grad.new_zeros(len(grad), 3, *grad.shape[2:])
        parts = grad[: sum(sizes)].split(sizes), made[: sum(sizes)].split(sizes)
        for run, part, place in zip(ctx.runs, *parts, strict=True):
            (q, k, v, weights, mixed), kept = kept[:5], kept[5:]
            out = _heads(part, run)[0]
            along = (out * mixed).sum(2, keepdim=True)
            scores = torch.bmm(out, v.mT).sub_(along).mul_(weights)
            heads = torch.stack([torch.bmm(scores, k), torch.bmm(scores.mT, q), torch.bmm(weights.mT, out)])
            _turn(heads[:2], back[: run[1]])
            _put(heads, place, run)
        return made.flatten(1), None, None


def _turn(heads: Tensor, turns: Tensor) -> None:
    """Rotary embedding of heads [..., length, D], in place. Neighbouring dimensions are a complex number."""
    wide = heads.float()
    torch.view_as_complex(wide.unflatten(-1, (-1, 2))).mul_(turns)
    heads.copy_(wide)


def _heads(x: Tensor, run: tuple[int, int]) -> Tensor:
    """[N, parts, H, D] -> [parts, rows * H, length, D], as batched products need it."""
    return x.unflatten(0, run).permute(2, 0, 3, 1, 4).contiguous().flatten(1, 2)


def _put(heads: Tensor, place: Tensor, run: tuple[int, int]) -> None:
    """The reverse: [parts, rows * H, length, D] into `place` [N, parts, H, D]."""
    place.unflatten(0, run).copy_(heads.unflatten(1, (run[0], -1)).permute(1, 3, 0, 2, 4))


def _product(x: Tensor, *weights: Tensor, scale: Tensor | None = None) -> Tensor:
    """One product with several tables, whose inputs are scaled."""
    table = torch.cat(weights) if len(weights) > 1 else weights[0]
    return F.linear(x, (table if scale is None else table * scale).to(FAST))


def _paired(table: Tensor, size: int) -> Tensor:
    """The outputs of each head in another order: what rotary embedding turns together lies side by side."""
    return table.unflatten(0, (-1, 2, size // 2)).transpose(1, 2).reshape(table.shape)


def _padded(x: Tensor) -> Tensor:
    """With zeros up to a multiple of STEP."""
    return F.pad(x, (0, -len(x) % STEP))


def logits(model: Llada, tokens: Tensor, lengths: list[int], select: Tensor) -> Tensor:
    """float32 [P, V] at the positions `select` of rows that lie end to end; for `backward`, as from the model."""
    config, parts = model.config, cast("Any", model.model["transformer"])
    norm, gate, attend = cast("Any", _Norm).apply, cast("Any", _Gate).apply, cast("Any", _Attention).apply
    size = config.d_model // config.n_heads
    angle = torch.arange(max(lengths))[:, None] / config.rope_theta ** (torch.arange(0, size, 2) / size)
    turns = torch.polar(torch.full_like(angle, size**-0.25), angle)  # also scales the scores by size**-0.5
    runs = [(len(list(same)), length) for length, same in groupby(lengths)]
    wanted, select = len(select), _padded(select)
    x, last = parts["wte"](_padded(tokens)), len(parts["blocks"]) - 1
    for number, layer in enumerate(parts["blocks"]):
        tables = _paired(layer.q_proj.weight, size), _paired(layer.k_proj.weight, size), layer.v_proj.weight
        heads = _product(norm(x, config.norm_eps), *tables, scale=layer.attn_norm.weight)
        mixed = attend(heads, turns, runs)
        if number == last:
            x, mixed = x[select], mixed[select]
        x = x + _product(mixed, layer.attn_out.weight)
        fed = norm(x, config.norm_eps)
        both = _product(fed, layer.ff_proj.weight, layer.up_proj.weight, scale=layer.ff_norm.weight)
        x = x + _product(gate(both), layer.ff_out.weight)
    return _product(norm(x, config.norm_eps), model.table, scale=parts["ln_f"].weight)[:wanted].float()
