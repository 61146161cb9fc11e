"""What smaller weights cost: perplexity, answers that differ, bytes, and the peak memory of loading."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from tacg.bench import load
from tacg.bench.timing import race
from tacg.models.quantized import GROUP, KINDS, PackedWeight
from tacg.records.stats import wilson
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table
from tacg.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tacg.llm import LLM
    from tacg.records.rows import ResultRow
    from tacg.types import Output

PARTS = ("quality", "loading", "kernels")
TASKS = ("pocket-math", "pocket-code", "pocket-sudoku")
DECODED = "pocket-math"
SHARES = (0.25, 0.5, 0.75, 1.0)  # shares of an answer that are masked
TOKENS = (1, 16, 64)  # rows of the timed products; a diffusion model seldom has fewer than 32
ROUNDS = 9
SEED = 0
REPORT = f"""# Smaller weights

Drawn from rows.jsonl by `tacg bench quantize`. int4 has groups of {GROUP}. Perplexity is measured on reference answers
of which {", ".join(f"{share:.0%}" for share in SHARES)} of the tokens are masked at random. "Same" compares with
float32. pocket finds several wordings nearly equally likely, so any rounding changes the wording of some answers:
compare with bfloat16. Accuracy and agreement are those of `tacg` with its default knobs.
"""


def measure(
    loaded: Callable[..., LLM], n: int, gigabytes: float, width: int, parts: Sequence[str] = PARTS
) -> Iterator[ResultRow]:
    """Rows on the quality of each kind against full precision, on loading, and on the kernels of PyTorch.

    n          problems per task
    gigabytes  size of the checkpoint that is loaded
    width      width of the square matrices whose products are timed
    """
    if "quality" in parts:
        yield from _qualities(loaded, n)
    if "loading" in parts:
        for kind in KINDS:
            for row in load.measure(gigabytes, families=("llada",), quantize=kind):
                yield row | {"bench": "quantize", "what": "loading"}
    if "kernels" in parts:
        for tokens in TOKENS:
            yield _kernels(tokens, width)


def _qualities(loaded: Callable[..., LLM], n: int) -> Iterator[ResultRow]:
    """Full precision, then bfloat16 to compare with, then the kinds."""
    plain = loaded(dtype="float32", quantize=None)
    losses = {task: cross_entropy(plain, task, n) for task in TASKS}
    answers = _decoded(plain, n)
    yield _quality(plain, losses, losses, answers, answers, n)
    for dtype, kind in (("bfloat16", None), *(("float32", kind) for kind in KINDS)):
        llm = loaded(dtype=dtype, quantize=kind)
        mine = {task: cross_entropy(llm, task, n) for task in TASKS}
        yield _quality(llm, mine, losses, _decoded(llm, n), answers, n)


@torch.no_grad()
def cross_entropy(llm: LLM, task: str, n: int) -> float:
    """Mean over masked tokens of reference answers, which are masked at random in several shares."""
    generator = torch.Generator().manual_seed(SEED)
    total, count = 0.0, 0
    for problem in get_task(task).problems("test", n, SEED):
        prompt, answer = llm.encode(problem.prompt), llm.tokenizer.encode(problem.answer)
        ids = torch.tensor([prompt + answer]).repeat(len(SHARES), 1)
        draws = torch.rand(ids.shape, generator=generator)
        masked = (draws < torch.tensor(SHARES)[:, None]) & (torch.arange(ids.shape[1]) >= len(prompt))
        logits = llm.logits(ids.masked_fill(masked, llm.model.spec.mask_id))
        total += float(F.cross_entropy(logits[masked], ids[masked], reduction="sum"))
        count += int(masked.sum())
    return total / count


def _decoded(llm: LLM, n: int) -> list[tuple[Output, bool]]:
    """Answers, and whether they are right."""
    task = get_task(DECODED)
    problems = list(task.problems("test", n, SEED))
    outputs = llm.generate([problem.prompt for problem in problems], "tacg", **dict[str, Any](task.decode))
    return [(out, task.grade(problem, out.text).correct) for problem, out in zip(problems, outputs, strict=True)]


def _quality(
    llm: LLM, losses: Mapping[str, float], plain: Mapping[str, float],
    answers: Sequence[tuple[Output, bool]], plain_answers: Sequence[tuple[Output, bool]], n: int,
) -> ResultRow:  # fmt: skip
    pairs = [(ours.tokens, theirs.tokens) for (ours, _), (theirs, _) in zip(answers, plain_answers, strict=True)]
    same = sum(a == b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=False))
    right = sum(correct for _, correct in answers)
    kind = llm.identity.get("quantize", "none")
    return {
        "bench": "quantize", "what": "quality", "model": llm.model.spec.name, "quantize": kind,
        "dtype": llm.identity["dtype"], "group": GROUP if kind == "int4" else None,
        "n": n, "seed": SEED, "cross_entropy": dict(losses),
        "perplexity_over_plain": {task: math.exp(losses[task] - plain[task]) for task in losses},
        "task": DECODED, "policy": "tacg", "accuracy": right / n, "accuracy_ci": list(wilson(right, n)),
        "same_tokens": same / sum(max(map(len, pair)) for pair in pairs),
        "same_answers": sum(ours == theirs for ours, theirs in pairs) / n,
        "steps": sum(out.steps for out, _ in answers) / n,
        "bytes": sum(each.nbytes for each in llm.model.parameters()),  # type: ignore[attr-defined]
        **surroundings(),
    }  # fmt: skip


def _kernels(tokens: int, width: int) -> ResultRow:
    """Products with packed weights, ours and PyTorch's, over the same product in float32 with plain weights."""
    x, weight = torch.randn(tokens, width), torch.randn(width, width) * width**-0.5
    runners: dict[str, Callable[[], object]] = {"plain": lambda: F.linear(x, weight)}
    for kind in KINDS:
        packed = PackedWeight.empty(kind, (width, width), torch.device("cpu"))
        packed.put(0, weight)
        runners[kind] = partial(packed.product, x, None)
        for dtype in (torch.float32, torch.bfloat16):
            runners[f"torch {kind} {str(dtype)[6:]}"] = _torch_product(packed, x.to(dtype))
    times = race(runners, ROUNDS)  # compared at their 20th percentile: other processes disturb it least
    return {
        "bench": "quantize", "what": "kernels", "tokens": tokens, "shape": [width, width],
        "seconds_over_plain": {name: spread[0] / times["plain"][0] for name, spread in times.items()},
        "seconds": times, **surroundings(),
    }  # fmt: skip


def _torch_product(packed: PackedWeight, x: torch.Tensor) -> Callable[[], object]:
    """PyTorch's own product with the same weights."""
    ops = torch.ops.aten
    if packed.lowest is None:
        scale = packed.scale.flatten().to(x.dtype)
        return lambda: ops._weight_int8pack_mm(x, packed.values, scale)
    steps = torch.cat([packed.values & 15, packed.values >> 4], dim=-1).int()
    scale, lowest = packed.scale.squeeze(-1).float(), packed.lowest.squeeze(-1).float()
    pairs = torch.stack([scale, lowest + 8 * scale], dim=-1).transpose(0, 1).contiguous().to(x.dtype)
    values = ops._convert_weight_to_int4pack_for_cpu(steps, 1)
    return lambda: ops._weight_int4pack_mm_for_cpu(x, values, GROUP, pairs)


def report(rows: Sequence[ResultRow]) -> str:
    """The whole report in Markdown."""
    return REPORT + "\n" + "\n".join(table.markdown() for table in tables(rows))


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """Quality, loading, kernels."""
    quality = [
        (
            row["dtype"] if row["quantize"] == "none" else row["quantize"], f"{row['bytes'] / 1e6:.2f}",
            *(f"{100 * (row['perplexity_over_plain'][task] - 1):+.2f} %" for task in TASKS),
            f"{100 * row['accuracy']:.0f} % ({100 * row['accuracy_ci'][0]:.0f}–{100 * row['accuracy_ci'][1]:.0f})",
            f"{100 * row['same_tokens']:.1f} %", f"{100 * row['same_answers']:.0f} %",
        )
        for row in rows if row["what"] == "quality"
    ]  # fmt: skip
    loading = [
        (
            row["quantize"], f"{row['bytes'] / 1e9:.2f}", f"{row['kept_bytes'] / 1e9:.2f}",
            f"{row['peak_bytes'] / 1e9:.2f}", f"{row['peak_bytes'] / row['kept_bytes']:.3f}",
        )
        for row in rows if row["what"] == "loading"
    ]  # fmt: skip
    kernels = [row for row in rows if row["what"] == "kernels"]
    names = list(kernels[0]["seconds_over_plain"]) if kernels else []
    times = [(str(row["tokens"]), *(f"{row['seconds_over_plain'][name]:.2f}" for name in names)) for row in kernels]
    return [
        Table(
            "quality", ("weights", "MB", *(f"perplexity, {task}" for task in TASKS), f"accuracy, {DECODED}",
            "same tokens", "same answers"), tuple(quality),
        ),
        Table("loading", ("weights", "checkpoint, GB", "kept, GB", "peak, GB", "peak over kept"), tuple(loading)),
        Table("time over float32 with plain weights", ("tokens", *names), tuple(times)),
    ]  # fmt: skip
