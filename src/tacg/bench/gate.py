"""What `commit_step` costs in a custom loop: by prompt length, and as positions are committed.

floor  one `logsumexp` and one `lerp_` over as many positions as are masked
lazy   support measured where it can change a decision, as in the engine
eager  support measured everywhere, as for traces
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tacg.bench.scan import Steps
from tacg.bench.timing import race
from tacg.gate import GateConfig
from tacg.own_loop import GateState, commit_step
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table, estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from tacg.records.rows import ResultRow

BLOCK = 64


def measure(*, quick: bool = False, rounds: int = 15, device: str = "cpu") -> Iterator[ResultRow]:
    """Rows of (prompt, masked positions): the lazy gate, the eager gate and the floor, measured in turns."""
    vocabulary = 3001 if quick else 126_464
    shapes = [(64, BLOCK), (64, BLOCK // 2), (64, BLOCK // 8)]
    shapes += [(128, BLOCK)] if quick else [(512, BLOCK), (2048, BLOCK)]
    runners: dict[tuple[str, int, int], Callable[[], object]] = {}
    for prompt, masked in shapes:
        logits = torch.full((1, prompt + BLOCK, vocabulary), -1.0, device=device)
        logits[0, prompt : prompt + masked] = Steps(prompt, masked, vocabulary, device=device).next()
        mask = torch.zeros(1, prompt + BLOCK, dtype=torch.bool, device=device)
        mask[0, prompt : prompt + masked] = True
        runners["floor", prompt, masked] = _floor(logits[0, prompt : prompt + masked])
        runners["lazy", prompt, masked] = _gate(logits, mask, everywhere=False)
        runners["eager", prompt, masked] = _gate(logits, mask, everywhere=True)
    times = race(runners, 3 if quick else rounds, device)
    for (name, prompt, masked), (low, middle, high) in times.items():
        yield {
            "bench": "gate", "subject": name, "prompt": prompt, "masked": masked, "vocabulary": vocabulary,
            "ms": [1e3 * low, 1e3 * middle, 1e3 * high], "over_floor": middle / times["floor", prompt, masked][1],
            "over_shortest": middle / times[name, shapes[0][0], masked][1] if masked == BLOCK else None,
            "baseline": "floor", **surroundings(device),
        }  # fmt: skip


def _floor(logits: Tensor) -> Callable[[], object]:
    reference = logits.clone()
    return lambda: (torch.logsumexp(logits, dim=1), reference.lerp_(logits, 0.05))


def _gate(logits: Tensor, mask: Tensor, *, everywhere: bool) -> Callable[[], object]:
    state, config = GateState(), GateConfig(tau_floor=0.3, m_base=9, k_extra=2)
    base = torch.zeros_like(mask)
    return lambda: commit_step(logits, mask, base, state, config, everywhere=everywhere)


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One line per row."""
    columns = ("subject", "prompt", "masked", "ms p50 [p20, p80]", "over floor")
    lines = [
        (
            row["subject"], str(row["prompt"]), str(row["masked"]),
            estimate(row["ms"][1], row["ms"][0], row["ms"][2], ".2f"), f"{row['over_floor']:.2f}x",
        )
        for row in rows
    ]  # fmt: skip
    return [Table(f"commit_step, vocabulary {rows[0]['vocabulary']:,}", columns, tuple(lines))]
