"""The memory of a gated decode: resident memory beyond the same steps without a gate, each in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from tacg.errors import TacgError
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tacg.records.rows import ResultRow

POSITIONS, VOCABULARY, WIDTH = 64, 126_464, 4096

# Resident memory before and after steps of the gate on existing logits; earlier steps have allocated the buffers.
PROGRAM = """
import contextlib, ctypes, json, sys
import torch
from tacg.policies import get_policy
from tacg.scan import Hidden, Trajectories
kind, positions, size, width = sys.argv[1], *map(int, sys.argv[2:])
head = torch.nn.Linear(width, size, bias=False).requires_grad_(False)
states = torch.randn(positions, width)
logits = head(states)
policy = get_policy("tacg", threshold=1.0, tau_floor=0.0, m_base=9, m_extra=1, tau_escape=2.0)
observed, slots = torch.ones(1, positions, dtype=torch.bool), torch.arange(positions)
count = torch.zeros(1, dtype=torch.int64)
none = torch.zeros(0, dtype=torch.int64)

def steps(trajectories, left):
    trajectories.state = policy.start(1, positions, torch.device("cpu"))
    for _ in range(4):
        seen = observed & (torch.arange(positions) < left)
        hidden = Hidden(states[:left], head, none)
        scan = trajectories.scan(logits[:left], policy.needs, seen, places=slots[:left], hidden=hidden)
        trajectories.decide(policy, scan.to_signals(seen, step=count, steps=count + positions))
        trajectories.follow(scan, seen)

def resident():
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # memory that the allocator keeps for later does not count
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024

steps(Trajectories(1, positions, kind=kind), positions)  # once, thrown away
before = resident()
trajectories = Trajectories(1, positions, kind=kind)
steps(trajectories, positions)
whole = resident() - before
steps(trajectories, positions // 4)
print(json.dumps({"mb": whole, "mb_quarter": resident() - before}))
"""


def measure(*, quick: bool = False) -> Iterator[ResultRow]:
    """One row per kind of memory, at LLaDA's shape."""
    positions, vocabulary, width = (16, 60_000, 256) if quick else (POSITIONS, VOCABULARY, WIDTH)
    for kind in ("fp32", "bf16", "hidden"):
        words = [sys.executable, "-c", PROGRAM, kind, *map(str, (positions, vocabulary, width))]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TacgError(f"The measuring process failed: {done.stderr.strip().splitlines()[-1:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        block = positions * vocabulary * 4 / 2**20
        yield {
            "bench": "memory", "memory": kind, "positions": positions, "vocabulary": vocabulary, "width": width,
            "mb": found["mb"], "mb_quarter_left": found["mb_quarter"], "over_fp32_block": found["mb"] / block,
            "baseline": "one fp32 block of logits", **surroundings(),
        }  # fmt: skip


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One line per kind."""
    columns = ("memory", "MB", "of an fp32 block", "MB with a quarter masked")
    lines = [
        (row["memory"], f"{row['mb']:.1f}", f"{row['over_fp32_block']:.2f}x", f"{row['mb_quarter_left']:.1f}")
        for row in rows
    ]
    title = f"{rows[0]['positions']} positions, vocabulary {rows[0]['vocabulary']:,}, width {rows[0]['width']:,}"
    return [Table(title, columns, tuple(lines))]
