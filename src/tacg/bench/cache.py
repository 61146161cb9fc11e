"""What a cache saves: time per committed token of every mode, relative to no cache, in the same run.

The weights are random and the policy commits four tokens per step whatever the logits are, so every mode takes the
same number of steps on the same canvas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tacg.bench.timing import now
from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request
from tacg.models.tiny import random_model
from tacg.policies import get_policy
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tacg.models.loading import AnyNetwork
    from tacg.records.rows import ResultRow

A_STEP = 4
MODES = {"llada": ("none", "prefix", "dual"), "llada2": ("none", "block")}
SHAPES: dict[str, dict[str, Any]] = {
    "llada": {"d_model": 512, "n_layers": 8, "n_heads": 8, "n_kv_heads": 8, "mlp_hidden_size": 1536},
    "llada2": {
        "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 1536, "moe_intermediate_size": 192, "num_experts": 16, "num_experts_per_tok": 4,
        "n_group": 4, "topk_group": 2,
    },
}  # fmt: skip


def measure(
    prompts: Sequence[int], gen_length: int, *, quick: bool = False, device: str = "cpu"
) -> Iterator[ResultRow]:
    """One row per family, prompt length and mode; `quick` uses tiny models."""
    for family, modes in MODES.items():
        shape = {} if quick else SHAPES[family]
        longest = {"max_sequence_length" if family == "llada" else "max_position_embeddings": max(prompts) + gen_length}
        model = random_model(family, **shape, **longest).to(device)
        parameters = sum(each.numel() for each in model.parameters())
        for prompt in prompts:
            baseline = 0.0
            for mode in modes:
                seconds = _seconds(model, mode, prompt, gen_length)
                baseline = seconds if mode == "none" else baseline
                yield {
                    "bench": "cache", "family": family, "cache": mode, "prompt": prompt, "gen_length": gen_length,
                    "tokens_a_step": A_STEP, "parameters": parameters, "ms_per_token": 1e3 * seconds / gen_length,
                    "times_faster": baseline / seconds, "baseline": "none", **surroundings(device),
                }  # fmt: skip


def _seconds(model: AnyNetwork, mode: str, prompt: int, gen_length: int) -> float:
    """The faster of two decodes of one row."""
    ids = tuple(torch.randint(6, 100, (prompt,), generator=torch.Generator().manual_seed(0)).tolist())
    decode = Decode(gen_length=gen_length, block_length=32, steps=gen_length // A_STEP, early_stop=False, cache=mode)
    times = []
    for _ in range(2):
        began = now(model.device)
        Engine(model).generate([Request(ids, get_policy("schedule"), decode)])
        times.append(now(model.device) - began)
    return min(times)


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One table per family."""
    made = []
    for family in dict.fromkeys(row["family"] for row in rows):
        mine = [row for row in rows if row["family"] == family]
        lines = [
            (str(row["prompt"]), row["cache"], f"{row['ms_per_token']:.1f}", f"{row['times_faster']:.1f}x")
            for row in mine
        ]
        size = f"{mine[0]['parameters'] / 1e6:.0f} M parameters"
        made.append(Table(f"{family}, {size}", ("prompt", "cache", "ms per token", "against none"), tuple(lines)))
    return made
