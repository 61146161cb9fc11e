"""What the gate costs outside the model, compared with simpler implementations in the same run.

copy      a copy of the logits of these positions: the memory speed of this machine
floor     one `logsumexp` and one `lerp_` over the same positions: the minimum for confidence and an EMA
naive32   the gate's formulas in plain float32 operations over the same positions
naive64   the same in float64 over the whole sequence including the prompt, as in the released code
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tacg.bench.timing import race
from tacg.policies import get_policy
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table, estimate
from tacg.scan import Trajectories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from tacg.records.rows import ResultRow

W, BETA = 0.3, 0.95


class Steps:
    """Logits of consecutive steps, used in turn, and the implementations that read them."""

    def __init__(
        self, prompt: int, positions: int, vocabulary: int, batch: int = 1, dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ):  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        self.prompt, self.positions, self.batch, self.device = prompt, positions, batch, device
        first = torch.randn(batch * positions, vocabulary, generator=generator)
        # Confidences between 0.05 and 0.95, as in the middle of a decode.
        odds = torch.linspace(-3, 3, batch * positions)[torch.randperm(batch * positions, generator=generator)]
        place = torch.arange(batch * positions)
        first[place, place % vocabulary] = first.logsumexp(dim=1) + odds
        second = first + 0.1 * torch.randn(first.shape, generator=generator)
        self.frames = [first.to(device, dtype), second.to(device, dtype)]
        self.turn = 0

    def next(self) -> Tensor:
        """The logits of the next step, [B * W, V]."""
        self.turn += 1
        return self.frames[self.turn % 2]

    def gate(self, spec: str, memory: str = "fp32") -> Callable[[], object]:
        """Our gate: scan, decide, follow. Every position stays masked, so that every step costs the same."""
        policy = get_policy(spec, threshold=1.0, tau_floor=0.3, m_base=9, k_extra=2)
        trajectories = Trajectories(self.batch, self.positions, self.device, kind=memory)
        trajectories.state = policy.start(self.batch, self.positions, torch.device(self.device))
        observed = torch.ones(self.batch, self.positions, dtype=torch.bool, device=self.device)
        count = torch.zeros(self.batch, dtype=torch.int64, device=self.device)

        def step() -> object:
            scan = trajectories.scan(self.next(), policy.needs, observed)
            signals = scan.to_signals(observed, step=count, steps=count + self.positions)
            decision = trajectories.decide(policy, signals)
            trajectories.follow(scan, observed)
            return decision

        return step

    def copy(self) -> Callable[[], object]:
        """One read and one write."""
        target = torch.empty_like(self.frames[0])
        return lambda: target.copy_(self.next())

    def floor(self) -> Callable[[], object]:
        """One logsumexp, one lerp."""
        reference = self.frames[0].float()

        def step() -> object:
            z = self.next()
            total = torch.logsumexp(z, dim=1)
            reference.lerp_(z.float(), 1 - BETA)
            return total

        return step

    def naive(self, dtype: torch.dtype, *, whole: bool) -> Callable[[], object]:
        """Three softmaxes and an EMA, over the active positions or the whole sequence."""
        length = self.prompt if whole else 0
        pad = torch.zeros(length, self.frames[0].shape[1], dtype=self.frames[0].dtype, device=self.device)
        frames = [torch.cat([pad, frame]) if whole else frame for frame in self.frames]
        reference = frames[0].to(dtype)

        def step() -> object:
            nonlocal reference
            self.turn += 1
            z = frames[self.turn % 2].to(dtype)
            confidence, token = z.softmax(dim=1).max(dim=1)
            past = reference.softmax(dim=1).gather(1, token[:, None])
            readout = (z + W * (z - reference)).softmax(dim=1).gather(1, token[:, None])
            reference = BETA * reference + (1 - BETA) * z
            return confidence, past, readout

        return step


def measure(*, quick: bool = False, rounds: int = 15, device: str = "cpu") -> Iterator[ResultRow]:
    """One row per subject and shape: all baselines at LLaDA's shape, then growth relative to the floor."""
    if quick:
        yield from _row(Steps(8, 8, 3001, device=device), ("tacg", "tacg+klass"), 3, naive=True)
        return
    yield from _row(Steps(256, 64, 126_464, device=device), ("tacg", "tacg+klass"), rounds, naive=True)
    for shape in ({"vocabulary": 32_000}, {"vocabulary": 151_936}, {"positions": 32}, {"positions": 8}, {"batch": 4}):
        knobs: dict[str, Any] = {"prompt": 64, "positions": 64, "vocabulary": 126_464, "batch": 1} | shape
        yield from _row(Steps(**knobs, device=device), ("tacg",), rounds)
    yield from _row(Steps(64, 64, 126_464, dtype=torch.bfloat16, device=device), ("tacg",), rounds)


def _row(steps: Steps, specs: Sequence[str], rounds: int, *, naive: bool = False) -> Iterator[ResultRow]:
    runners: dict[str, Callable[[], object]] = {"copy": steps.copy(), "floor": steps.floor()}
    runners |= {spec: steps.gate(spec) for spec in specs}
    times = race(runners, rounds, steps.device)
    if naive:  # last, because a second of float64 leaves cold caches for the next runner
        slow = {"naive32": steps.naive(torch.float32, whole=False), "naive64": steps.naive(torch.float64, whole=True)}
        times |= race(slow, rounds, steps.device)
    memory = 2 * steps.frames[0].nbytes / times["copy"][1]  # bytes per second
    # The minimum memory traffic: logits are read, the reference is read and written.
    least = (steps.frames[0].nbytes + 8 * steps.frames[0].numel()) / memory
    for name, (low, middle, high) in times.items():
        yield {
            "bench": "scan", "subject": name, "positions": steps.positions, "batch": steps.batch,
            "vocabulary": steps.frames[0].shape[1], "sequence": steps.prompt + steps.positions,
            "dtype": str(steps.frames[0].dtype).removeprefix("torch."), "ms": [1e3 * low, 1e3 * middle, 1e3 * high],
            "over_floor": middle / times["floor"][1], "over_tacg": middle / times["tacg"][1], "baseline": "floor",
            "over_memory": middle / least, "gigabytes_per_second": memory / 1e9, **surroundings(steps.device),
        }  # fmt: skip


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One line per row."""
    columns = ("subject", "batch x positions", "vocabulary", "logits", "ms p50 [p20, p80]", "over floor", "over memory")
    lines = [
        (
            row["subject"], f"{row['batch']} x {row['positions']}", f"{row['vocabulary']:,}", row["dtype"],
            estimate(row["ms"][1], row["ms"][0], row["ms"][2], ".2f"), f"{row['over_floor']:.2f}x",
            f"{row['over_memory']:.2f}x",
        )
        for row in rows
    ]  # fmt: skip
    return [Table("A step outside the model", columns, tuple(lines))]
