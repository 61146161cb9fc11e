"""What a step costs on a GPU outside the forward, counted on a simulated one: kernels, reads and uploads. Then the same
for forwards at real depth (see `forwards`).

A steady step is one in which no row joins or leaves; its counts are medians over such steps. The cost of joining and
leaving is in the totals of the whole decode. The scan's Triton kernel is emulated and counts as one.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from tacg.bench import forwards
from tacg.bench.simulated_device import SimulatedDevice, Tally
from tacg.engine.events import Finished, Started
from tacg.engine.loop import Engine
from tacg.engine.request import Request, resolve
from tacg.llm import load
from tacg.models.tiny import random_model
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table
from tacg.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tacg.models.base import Denoiser
    from tacg.records.rows import ResultRow

KINDS = {"kernels": "kernel", "reads": "read", "uploads": "upload"}
POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("confidence", {}), ("klass", {}), ("tacg", {}), ("tacg+klass", {}), ("tacg", {"temperature": 0.7}),
)  # fmt: skip
BATCHES = (1, 8, 32)
THRESHOLDS = (0.9, 0.95, 0.98, 0.99)
# The phase of a step that each method of the engine belongs to. Labels set by the engine itself for the profiler take
# precedence; missing classes or methods are skipped.
PHASES = {
    ("tacg.engine.loop", "Engine"): {"submit": "admit", "_admit": "admit", "_forward": "pack"},
    ("tacg.engine.batch", "Batch"): {
        "join": "admit", "forward_input": "pack", "scan": "scan", "decide": "decide", "commit": "commit",
        "read": "read", "leave": "finish",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Rows that are decoded together."""

    model: str
    policy: str
    requests: tuple[Request, ...]
    about: str = ""


@dataclass(frozen=True)
class Counted:
    """A decode: the cost of each step, whether a row joined or left in it, and the total cost."""

    steps: tuple[tuple[Tally, bool], ...]
    total: Tally

    @property
    def steady(self) -> list[Tally]:
        """The steps in which no row joined or left."""
        return [tally for tally, moved in self.steps if not moved]


class PhasedModel:
    """A model whose calls, including its methods, are counted as the phase `forward`."""

    def __init__(self, model: Denoiser, device: SimulatedDevice) -> None:
        self._model, self._simulated = model, device

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._model, name)
        return self._simulated.phase("forward")(value) if inspect.ismethod(value) else value

    def __call__(self, *words: Any, **named: Any) -> Any:
        """Call the model."""
        with self._simulated.phase("forward"):
            return self._model(*words, **named)


def count(model: Denoiser, requests: Sequence[Request]) -> Counted:
    """Decode the requests together on a simulated device. The model must be on it already."""
    steps = []
    with SimulatedDevice() as device, phases_by_name(device):
        engine = Engine(cast("Denoiser", PhasedModel(model, device)), max_rows=len(requests))
        for request in requests:
            engine.submit(request)
        while engine.busy:
            before = device.tally.copy()
            events = engine.step(detail=False)
            moved = any(isinstance(event, Started | Finished) for event in events)
            steps.append((device.tally.since(before), moved))
    return Counted(tuple(steps), device.tally)


@contextlib.contextmanager
def phases_by_name(device: SimulatedDevice) -> Iterator[None]:
    """Make the engine's methods begin their phases."""
    with contextlib.ExitStack() as patches:
        for (module, name), phases in PHASES.items():
            if importlib.util.find_spec(module) is None:
                continue
            owner = getattr(importlib.import_module(module), name, None)
            for method, phase in phases.items():
                if hasattr(owner, method):
                    marked = device.phase(phase)(getattr(owner, method))
                    patches.enter_context(mock.patch.object(owner, method, marked))
        yield


def measure(*, quick: bool = False) -> Iterator[ResultRow]:
    """One row per case."""
    for model, case in cases(quick=quick):
        yield {"bench": "device", **row_of(case, count(model, case.requests)), **surroundings()}
    for row in forwards.measure(quick=quick):
        yield {"bench": "device", **row, **surroundings()}


def cases(*, quick: bool = False) -> Iterator[tuple[Denoiser, Case]]:
    """The cases, each with its model on the simulated device."""
    with SimulatedDevice():
        pocket = load("pocket", device="cuda")
        llada2 = random_model("llada2").to("cuda")
    task = get_task("pocket-math")
    prompts = [tuple(pocket.encode(problem.prompt)) for problem in task.problems("dev", max(BATCHES))]
    for spelling, knobs in POLICIES[1:3] if quick else POLICIES:
        policy, decode = resolve(spelling, {**task.decode, **knobs})
        for batch in (2,) if quick else BATCHES:
            requests = tuple(
                Request(prompt, policy, decode.replace(seed=i)) for i, prompt in enumerate(prompts[:batch])
            )
            about = ", ".join(f"{name} {value}" for name, value in knobs.items())
            yield pocket.model, Case("pocket", spelling, requests, about)
    yield pocket.model, Case("pocket", "tacg", _unlike(prompts[: 4 if quick else None], task.decode), "all unlike")
    # A threshold that no position reaches: random weights have no meaningful confidence, and rows should stay a while.
    policy, decode = resolve("tacg", {"gen_length": 64, "block_length": 32, "early_stop": False, "threshold": 1.0})
    requests = tuple(
        Request(tuple(6 + (3 * i + place) % 90 for place in range(20 + 5 * i)), policy, decode)
        for i in range(2 if quick else 8)
    )
    yield llada2, Case("random llada2", "tacg", requests, "prompts of unlike length")


def _unlike(prompts: Sequence[tuple[int, ...]], settings: Mapping[str, Any]) -> tuple[Request, ...]:
    """Rows with different prompt lengths, answer lengths and thresholds; none stops early."""
    made, longest = [], max(map(len, prompts))
    for i, prompt in enumerate(prompts):
        policy, decode = resolve("tacg", {**settings, "threshold": THRESHOLDS[i % len(THRESHOLDS)]})
        longer = prompt[:1] * (longest + i - len(prompt)) + prompt
        made.append(Request(longer, policy, decode.replace(gen_length=48 + i, early_stop=False)))
    return tuple(made)


def row_of(case: Case, counted: Counted) -> ResultRow:
    """The row of a decode: first the steady steps outside the forward."""
    steady, ends = counted.steady, {"outside": "forward"}
    inside = {name: _median(steady, kind, phase="forward") for name, kind in KINDS.items()}
    outside = {name: _median(steady, kind, **ends) for name, kind in KINDS.items()}
    found = Tally()
    for tally in steady:
        found.update({site: number for site, number in tally.items() if site.phase != "forward"})
    moves = Tally({site: number for site, number in found.items() if site.kind != "kernel"})
    phases, lines = (
        {name: {kind: number / len(steady) for kind, number in counts.items()} for name, counts in each.items()}
        for each in (found.by("phase"), moves.by("line"))
    )
    return {
        "model": case.model, "policy": case.policy, "case": case.about, "batch": len(case.requests),
        "scan": "triton, emulated" if importlib.util.find_spec("triton") else "reference",
        "steps": len(counted.steps), "steady_steps": len(steady), **outside,
        "most": {name: max((t.count(kind, **ends) for t in steady), default=None) for name, kind in KINDS.items()},
        "total": {name: counted.total.count(kind, **ends) for name, kind in KINDS.items()},
        "forward": inside,
        "outside_forward": outside["kernels"] / (outside["kernels"] + inside["kernels"]) if steady else None,
        "phases": phases, "lines": lines,
    }  # fmt: skip


def _median(steps: Sequence[Tally], kind: str, **which: Any) -> float:
    return float(statistics.median(tally.count(kind, **which) for tally in steps)) if steps else 0.0


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One line per case; the sources of reads and uploads in the trained model's last case; forwards."""
    deep, rows = ([row for row in rows if ("forward_of" in row) == whether] for whether in (True, False))
    columns = ("model", "policy", "case", "rows", "kernels", "reads", "uploads", "steady steps", "forward", "in all")
    lines = [
        (
            row["model"], row["policy"], row["case"], str(row["batch"]), *(f"{row[name]:g}" for name in KINDS),
            f"{row['steady_steps']} of {row['steps']}", _triple(row["forward"]), _triple(row["total"]),
        )
        for row in rows
    ]  # fmt: skip
    shown = [row for row in rows if row["model"] == "pocket"][-1]
    sites = sorted(shown["lines"].items(), key=lambda site: (-sum(site[1].values()), site[0]))
    return [
        Table("A steady step outside the forward, medians; forward and in all: kernels / reads / uploads", columns,
              tuple(lines)),
        Table(f"Where a steady step reads and uploads: {shown['policy']}, {shown['batch']} rows, {shown['case']}",
              ("line", "reads", "uploads"),
              tuple((line, *(f"{counts.get(kind, 0):.1f}" for kind in ("read", "upload"))) for line, counts in sites)),
        Table("A steady forward in bfloat16, at real depth and tiny width",
              ("model", "cache", "rows", *KINDS, "kernels per layer"),
              tuple((row["forward_of"], row["cache"], str(row["batch"]), *(f"{row[name]:,g}" for name in KINDS),
                     f"{row['kernels_per_layer']:.1f}") for row in deep)),
    ]  # fmt: skip


def _triple(counts: dict[str, float]) -> str:
    return " / ".join(f"{counts[name]:,g}" if counts[name] < 1e6 else f"{counts[name]:,.0f}" for name in KINDS)
