"""Whole decodes: tokens per second by batch size, where the time goes, and how close we are to the matrix products.

plain     a loop like the published `generate`: the whole row goes through the output layer at every step, with a
          float64 softmax of all of it, one row at a time
outside   a step without its forward, between real forwards, at batch 1
products  only the same matrix products, on the same machine in the same run: no decode can be faster than these
"""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from tacg.bench.timing import now
from tacg.engine.batch import Batch
from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request
from tacg.models.base import whole
from tacg.models.tiny import random_model
from tacg.policies import get_policy
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from tacg.models.base import Denoiser, Span
    from tacg.models.llada import Llada
    from tacg.policies import Policy
    from tacg.records.rows import ResultRow

BATCHES = (1, 4, 16, 32, 64)
LIMITS = (1, 8, 32)  # batch sizes of the random model
MEDIUM = {"d_model": 512, "n_layers": 6, "n_heads": 8, "n_kv_heads": 8, "mlp_hidden_size": 1408}  # 20 M parameters


class Watched:
    """A model that records the duration and size of its calls: (tokens, logits)."""

    def __init__(self, model: Denoiser) -> None:
        self.model, self.spec, self.device = model, model.spec, model.device
        self.seconds, self.calls = 0.0, list[tuple[int, int]]()

    def __call__(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Call the model."""
        began = now(self.device)
        logits = self.model(tokens, spans, select)
        self.seconds += now(self.device) - began
        self.calls.append((len(tokens), len(select)))
        return logits


@contextlib.contextmanager
def watched_batches(spent: dict[str, float], device: torch.device) -> Iterator[None]:
    """Sum the time that every batch spends in `scan`, `decide`, `commit` and `read`."""
    originals = {name: getattr(Batch, name) for name in ("scan", "decide", "commit", "read")}

    def watched(name: str) -> Any:
        def method(*words: Any, **named: Any) -> Any:
            began = now(device)
            made = originals[name](*words, **named)
            spent[name] += now(device) - began
            return made

        return method

    for name in originals:
        setattr(Batch, name, watched(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(Batch, name, original)


def measure(model: Denoiser, prompts: Sequence[tuple[int, ...]], name: str, batches: Sequence[int], decode: Decode,
            spec: str = "tacg") -> Iterator[ResultRow]:  # fmt: skip
    """One row per batch size: `batch` prompts at once, repeated until all are decoded."""
    for batch in batches:
        policy = get_policy(spec)
        timed, spent = Watched(model), defaultdict[str, float](float)
        run(timed, prompts[:batch], policy, decode, batch)  # warm-up
        timed.seconds = 0.0
        mine = prompts[: max(8, 2 * batch)]
        with watched_batches(spent, model.device):
            began = now(model.device)
            outputs = run(timed, mine, policy, decode, batch)
            total = now(model.device) - began
        tokens = sum(len(output.tokens) for output in outputs)
        shares = {"forward": timed.seconds / total} | {part: seconds / total for part, seconds in spent.items()}
        shares["rest"] = 1.0 - sum(shares.values())
        yield {
            "bench": "decode", "model": name, "policy": policy.label, "batch": batch, "tokens": tokens,
            "tokens_per_second": tokens / total, "steps": sum(output.steps for output in outputs) / len(outputs),
            "shares": shares, "outside_forward": 1 - shares["forward"], **surroundings(model.device),
        }  # fmt: skip


def between_forwards(
    model: Denoiser, prompt: tuple[int, ...], name: str, decode: Decode, repeats: int = 12
) -> Iterator[ResultRow]:
    """What one step of one row takes outside the model: the median over steps of each step's fastest time.

    Between real forwards, because these leave nothing in the caches; `forward_ms` is the median of all of them.
    """
    for spec in ("confidence", "tacg", "tacg+klass"):
        policy, timed = get_policy(spec), Watched(model)
        times, forwards = defaultdict[int, list[float]](list), list[float]()
        for _ in range(repeats):
            engine = Engine(timed, max_rows=1)
            engine.submit(Request(prompt, policy, decode))
            while engine.busy:
                timed.seconds, began = 0.0, now(model.device)
                engine.step(detail=False)
                times[len(timed.calls)].append(now(model.device) - began - timed.seconds)
                forwards.append(timed.seconds)
            timed.calls.clear()
        outside, forward = statistics.median(min(each) for each in times.values()), statistics.median(forwards)
        yield {
            "bench": "decode", "model": name, "policy": policy.label, "batch": 1, "steps": float(len(times)),
            "outside_ms": 1000 * outside, "forward_ms": 1000 * forward,
            "outside_forward": outside / (outside + forward), **surroundings(model.device),
        }  # fmt: skip


def run(model: Any, prompts: Sequence[tuple[int, ...]], policy: Policy, decode: Decode, batch: int) -> Any:
    """Decode all prompts, `batch` at a time."""
    return Engine(model, max_rows=batch).generate([Request(prompt, policy, decode) for prompt in prompts])


def against_plain(model: Denoiser, prompt: tuple[int, ...], name: str, decode: Decode) -> ResultRow:
    """One token per step, one row: our engine and the plain loop take the same steps."""
    run(model, [prompt], get_policy("schedule"), decode, 1)
    began = now(model.device)
    (ours,) = run(model, [prompt], get_policy("schedule"), decode, 1)
    middle = now(model.device)
    plain(model, prompt, decode)
    ended = now(model.device)
    return {
        "bench": "decode", "model": name, "policy": "schedule", "batch": 1, "tokens": len(ours.tokens),
        "tokens_per_second": len(ours.tokens) / (middle - began), "steps": float(ours.steps), "baseline": "plain",
        "times_faster": (ended - middle) / (middle - began), **surroundings(model.device),
    }  # fmt: skip


@torch.no_grad()
def plain(model: Denoiser, prompt: tuple[int, ...], decode: Decode) -> Tensor:
    """The tokens of one row decoded with one token per step, without any optimization."""
    canvas = torch.tensor([*prompt, *[model.spec.mask_id] * decode.gen_length], device=model.device)
    ruler = torch.arange(len(canvas), device=model.device)
    hidden = list(model.spec.unwritable)
    edges = model.spec.edges(len(prompt), decode.block_length, decode.gen_length)
    for start, stop, steps in decode.blocks(edges, [True] * decode.gen_length):
        for _ in range(steps):
            logits = model(canvas, whole([len(canvas)]), ruler)
            logits[:, hidden] = -torch.inf
            confidence, token = logits.double().softmax(dim=1).max(dim=1)
            place = ruler - len(prompt)
            open_ = (canvas == model.spec.mask_id) & (place >= start) & (place < stop)
            best = confidence.masked_fill(~open_, -1.0).argmax()
            canvas[best] = token[best]
    return canvas[len(prompt) :]


def near_the_limit(
    batch: int = 32, *, quick: bool = False, shape: dict[str, Any] | None = None, device: str = "cpu"
) -> ResultRow:
    """A random LLaDA of 20 M parameters: the share of the time that only the same matrix products would take."""
    model: Any = random_model("llada", **({} if quick else shape or MEDIUM)).to(device)
    generator = torch.Generator().manual_seed(0)
    prompts = [tuple(torch.randint(6, 90, (64,), generator=generator).tolist()) for _ in range(batch)]
    decode = Decode(gen_length=64, block_length=32, steps=8 if quick else 16, early_stop=False)
    timed = Watched(model)
    run(timed, prompts, get_policy("tacg+schedule"), decode, batch)
    timed.calls.clear()
    began = now(device)
    outputs = run(timed, prompts, get_policy("tacg+schedule"), decode, batch)
    total = now(device) - began
    alone = products(model, timed.calls, rows=batch)
    tokens = sum(len(output.tokens) for output in outputs)
    return {
        "bench": "decode", "model": f"random LLaDA, {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M",
        "policy": "tacg+schedule", "batch": batch, "tokens": tokens, "tokens_per_second": tokens / total,
        "steps": float(outputs[0].steps), "baseline": "products", "share_of_limit": alone / total,
        **surroundings(device),
    }  # fmt: skip


@torch.no_grad()
def products(model: Llada, calls: Sequence[tuple[int, int]], rows: int) -> float:
    """Seconds that the matrix products of these calls take on their own, including attention's."""
    parts: Any = model.model["transformer"]
    config = model.config
    heads, size = config.n_heads, config.d_model // config.n_heads
    seconds = 0.0
    for tokens, logits in calls:
        device, widths = model.device, (config.d_model, config.mlp_hidden_size)
        x, inner = (torch.randn(tokens, width, device=device) for width in widths)
        length = tokens // rows
        q, k, v = (torch.randn(rows * heads, length, size, device=device) for _ in range(3))
        began = now(model.device)
        for block in parts["blocks"]:
            for layer in (block.q_proj, block.k_proj, block.v_proj, block.attn_out, block.ff_proj, block.up_proj):
                F.linear(x, layer.weight)
            F.linear(inner, block.ff_out.weight)
            torch.bmm(torch.bmm(q, k.transpose(1, 2)), v)
        F.linear(x[:logits], model.table)
        seconds += now(model.device) - began
    return seconds


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """Speed by batch size with shares of time, what a step costs outside the model, and the two comparisons."""
    columns = ("model", "batch", "policy", "tokens/s", "forward", "scan", "decide", "commit", "read", "rest", "against")
    lines = []
    for row in rows:
        shares = row.get("shares", {})
        parts = [f"{100 * shares[part]:.0f} %" if part in shares else "" for part in PARTS]
        versus = ""
        if "times_faster" in row:
            versus = f"{row['times_faster']:.1f}x plain"
        if "outside_ms" in row:
            versus = f"{row['outside_ms']:.2f} ms per step outside the forward"
        if "share_of_limit" in row:
            versus = f"{100 * row['share_of_limit']:.0f} % of products"
        pace = f"{row['tokens_per_second']:.0f}" if "tokens" in row else ""
        lines.append((row["model"], str(row["batch"]), row["policy"], pace, *parts, versus))
    return [Table("Whole decodes", columns, tuple(lines))]


PARTS = ("forward", "scan", "decide", "commit", "read", "rest")
