"""What to run for an hour on a rented GPU with real checkpoints; it writes one file to send back.

This library was written without a GPU. Its device code is counted on a simulated one; this checks the same on a real
one. Each part runs by itself: if one fails, its error is reported and the next one runs.

A rehearsal uses the simulated device instead, the CPU for what is timed or takes long, and untrained models. It shows
that every part runs to its end, and nothing about speed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import subprocess
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tacg.bench import cache, decode, gate, scan
from tacg.bench.forwards import FORWARDS, SIMULATED, steady_forward
from tacg.bench.simulated_device import SimulatedDevice
from tacg.bench.vendors import vendor_model
from tacg.engine.draws import PROPOSAL, sample, uniform
from tacg.engine.graphs import Graphs
from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request
from tacg.errors import TacgError
from tacg.files import write_file
from tacg.llm import load
from tacg.models.base import whole
from tacg.models.tiny import SHAPES, random_model
from tacg.policies import get_policy
from tacg.records.surroundings import surroundings
from tacg.scan import Trajectories
from tacg.types import EmaContrast, Needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Part = Callable[["Hour"], Any]

TABLES = ("table1", "table2", "table3", "table4", "table5", "figures")
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 0.1}  # mean difference of logits whose standard deviation is about 1


@dataclass(frozen=True)
class Hour:
    """What to run, and on which models.

    models    checkpoints by their name in the paper: a directory or hub id each
    rehearse  on the simulated device and the CPU, with tiny models
    """

    models: dict[str, str] = field(default_factory=dict)
    rehearse: bool = False
    data: tuple[str, ...] = ()
    n: int = 4

    @property
    def device(self) -> str:
        """Where things are timed and decoded."""
        return "cpu" if self.rehearse else "cuda"

    @contextlib.contextmanager
    def kernels(self) -> Iterator[SimulatedDevice | None]:
        """Where `cuda` can be used: the real one, or the simulated one."""
        if not self.rehearse:
            yield None
            return
        with SimulatedDevice() as device:
            yield device


def doctor(hour: Hour) -> dict[str, Any]:
    """The hardware and software of this machine."""
    found = surroundings(hour.device)
    if not hour.rehearse:
        made = torch.cuda.get_device_properties(0)
        found |= {"device": made.name, "gigabytes": made.total_memory / 1e9, "capability": f"{made.major}.{made.minor}"}
    return found


@torch.no_grad()
def families(hour: Hour) -> list[dict[str, Any]]:
    """Logits of random models of every family on the device against the CPU's in float32."""
    rows: list[dict[str, Any]] = []
    for family in ("llada", "llada2") if hour.rehearse else SHAPES:
        tokens, spans = torch.arange(104) * 7 % 100, whole([40, 64])
        expected = random_model(family, liveliness=1.0)(tokens, spans, torch.arange(104))
        for dtype, limit in TOLERANCE.items():
            with hour.kernels():
                model = random_model(family, liveliness=1.0).to("cuda", dtype)
                found = model(tokens.to("cuda"), spans, torch.arange(104, device="cuda")).float().cpu()
            off = (found - expected).abs()
            row = {"family": family, "dtype": str(dtype), "largest_difference": float(off.max())}
            rows.append(row | {"mean_difference": float(off.mean()), "right": float(off.mean()) <= limit})
    return rows


@torch.no_grad()
def parity(hour: Hour) -> list[dict[str, Any]]:
    """Logits of real checkpoints against those of the same network in `transformers`, with the same weights."""
    rows: list[dict[str, Any]] = []
    for name, place in (hour.models or {"rehearsal": "tiny"}).items():
        llm: Any = load(place, device=hour.device, dtype="float32" if hour.rehearse else "bfloat16")
        ids = torch.tensor([llm.encode("The quick brown fox jumps over the lazy dog. " * 3)], device=hour.device)
        theirs = vendor_model(llm.model)
        if theirs is None:
            rows.append({"model": name, "why_not": f"`transformers` has no class for {llm.model.spec.family}"})
            continue
        expected, found = theirs(input_ids=ids).logits.float(), llm.logits(ids)
        if llm.model.spec.logit_shift:
            expected = torch.cat([expected[:, :1], expected[:, :-1]], dim=1)
        agree = (found.argmax(dim=2) == expected.argmax(dim=2)).float().mean()
        off = (found - expected).abs()
        row = {"model": name, "positions": ids.shape[1], "same_argmax": float(agree)}
        rows.append(row | {"largest_difference": float(off.max()), "mean_difference": float(off.mean())})
        del llm, theirs
    return rows


def syncs(hour: Hour) -> dict[str, Any]:
    """How often a decode waits for the device: once per step, and a little more when rows join or leave."""
    with hour.kernels() as simulated:
        llm = load("pocket", device="cuda")
        outputs, waits = [], 0
        if simulated is not None:
            outputs = [llm.generate("12 + 7", "tacg", gen_length=16)]
            waits = simulated.tally.count("read")
        else:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                try:
                    outputs = [llm.generate("12 + 7", "tacg", gen_length=16)]
                finally:
                    torch.cuda.set_sync_debug_mode("default")
            lines = [f"{each.filename}:{each.lineno}" for each in told if "synchroniz" in str(each.message)]
            waits = len(lines)
    steps = outputs[0].steps
    return {"steps": steps, "waits": waits, "right": waits <= 2 * steps + 8}


def kernels(hour: Hour) -> list[dict[str, Any]]:
    """Kernels per forward at real depth, next to what the simulated device counted."""
    rows: list[dict[str, Any]] = []
    for case in FORWARDS[1:2] if hour.rehearse else FORWARDS:
        with hour.kernels() as simulated:
            run = steady_forward(case)
            if simulated is not None:
                simulated.tally.clear()
                run()
                count = simulated.tally.count("kernel")
            else:
                activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
                with torch.profiler.profile(activities=activities) as profile:
                    run()
                    torch.cuda.synchronize()
                on_device = [each for each in profile.events() if str(each.device_type).endswith("CUDA")]
                count = len(on_device)
        expected = SIMULATED[case.model, case.cache]
        rows.append({"forward_of": case.model, "cache": case.cache, "batch": case.rows} | {
            "kernels": count, "simulated": expected, "ratio": count / expected
        })  # fmt: skip
    return rows


@torch.no_grad()
def scans(hour: Hour) -> list[dict[str, Any]]:
    """Our kernels for scan and sampling against the readable code, also on the second GPU, if there is one."""
    if importlib.util.find_spec("triton") is None:
        raise TacgError("Triton is not installed, so there are no kernels of our own to check: pip install triton.")
    needs = Needs("kl", "margin", "entropy", "reference", "readout", contrast=EmaContrast(0.3, 0.95))
    second = hour.rehearse or torch.cuda.device_count() > 1
    shapes = ((2, 1000),) if hour.rehearse else ((1, 126464), (8, 151936), (64, 126464))
    rows: list[dict[str, Any]] = []
    for device in ("cuda:0", "cuda:1") if second else ("cuda:0",):
        for positions, vocabulary in shapes:
            for dtype in (torch.float32, torch.bfloat16):
                with hour.kernels():
                    found = _scanned(device, positions, vocabulary, dtype, needs)
                rows.append(
                    {"device": device, "positions": positions, "vocabulary": vocabulary, "dtype": str(dtype)} | found
                )
    return rows


def _scanned(device: str, positions: int, vocabulary: int, dtype: torch.dtype, needs: Needs) -> dict[str, Any]:
    """Three steps with both, from the same logits: tokens, the largest difference of a signal, and sampled tokens."""
    from tacg.engine.triton_draws import drawn

    generator = torch.Generator().manual_seed(positions)
    memories = {name: Trajectories(1, positions, device) for name in ("triton", "reference")}
    flags = torch.ones(1, positions, dtype=torch.bool, device=device)
    zero, heat = torch.zeros(1, dtype=torch.int64, device=device), torch.ones(1, device=device)
    tokens, off, drawn_alike = True, 0.0, 0
    for step in range(3):
        logits = torch.randn(positions, vocabulary, generator=generator) * 3
        logits[:, 7 + step] = 16.0  # in 16 bits, the largest of so many would often occur twice
        logits = logits.to(device, dtype)
        made: dict[str, Any] = {}
        for name, memory in memories.items():
            scan = memory.scan(logits, needs, flags, backend=name)
            made[name] = scan.to_signals(flags, eager=True, step=zero, steps=zero + 1)
            memory.follow(scan, flags)
        one, other = made["triton"], made["reference"]
        tokens = tokens and bool((one.token == other.token).all())
        for name in needs.names:
            off = max(off, float((one.measured[name] - other.measured[name]).abs().max()))
        chance = uniform(zero, zero + step, positions, PROPOSAL)[0]
        mine = drawn(logits, None, positions, zero, zero, zero + step, heat)
        drawn_alike += int((mine == sample(logits, heat.expand(positions), chance).squeeze(1)).sum())
    right = tokens and off < 1e-3 and drawn_alike >= 0.95 * 3 * positions
    return {
        "same_tokens": tokens,
        "largest_difference": off,
        "same_draws": drawn_alike / (3 * positions),
        "right": right,
    }


def graph_decodes(hour: Hour) -> list[dict[str, Any]]:
    """Decodes with CUDA graphs: the same tokens and steps, how many steps were replays, and how long they take."""
    rows: list[dict[str, Any]] = []
    with hour.kernels() as simulated:
        llm = load("pocket", device="cuda", dtype="float32" if hour.rehearse else "bfloat16")
        prompts = [tuple(llm.encode(text)) for text in ("12 + 7", "3 * (4 + 5)", "100 - 58", "7 * 8")]
        for policy, cache_mode in (("confidence", "none"), ("tacg", "dual"), ("tacg+klass", "none")):
            made = Decode(gen_length=48, block_length=16, cache=cache_mode, early_stop=False)
            requests = [Request(prompt, get_policy(policy), made) for prompt in prompts]
            engine, plain = Engine(llm.model, max_rows=3), Engine(llm.model, max_rows=3)
            used = engine.graphs = Graphs(llm.model, None if simulated is None else (lambda step: step))
            found, expected = engine.generate(requests), plain.generate(requests)
            same = [(each.tokens, each.steps) for each in found] == [(each.tokens, each.steps) for each in expected]
            row = {"policy": policy, "cache": cache_mode, "captures": used.captures, "replays": used.replays}
            rows.append(row | {"why_not": used.why_not, "right": same and not used.why_not})
            if simulated is None:
                rows[-1]["seconds"] = {
                    "eager": _seconds(functools.partial(plain.generate, requests)),
                    "graphs": _seconds(functools.partial(engine.generate, requests)),
                }
    return rows


def graphs(hour: Hour) -> dict[str, Any]:
    """Whether a steady forward can be captured as a CUDA graph, and gives the same result when replayed."""
    case = FORWARDS[1]
    with hour.kernels() as simulated:
        run = steady_forward(case)
        if simulated is not None:
            simulated.tally.clear()
            run()
            asks = {kind: simulated.tally.count(kind) for kind in ("read", "upload")}
            return {"captured": None, **asks, "right": not any(asks.values())}
        expected, graph = run(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            static = run()
        graph.replay()
        torch.cuda.synchronize()
        off = float((static - expected).abs().max())
        seconds = {"eager": _seconds(run), "replayed": _seconds(graph.replay)}
        return {"captured": True, "largest_difference": off, "seconds": seconds, "right": off == 0.0}


def compiled(hour: Hour) -> dict[str, Any]:
    """Decodes with compiled layers: the same text, how often something was compiled, and how long it takes."""
    if hour.rehearse:
        return {"why_not": "a C++ compiler takes minutes for it; tests/models/test_compiling.py shows the rest"}
    from torch._dynamo.utils import counters

    seconds, texts = {}, {}
    for name in ("eager", "compiled"):
        llm = load("pocket", device=hour.device, dtype="bfloat16", compile=name == "compiled")
        texts[name] = llm.generate("12 + 7", "tacg").text
        seconds[name] = _seconds(functools.partial(llm.generate, ["12 + 7"] * 8, "tacg"))
    pieces = counters["stats"]["unique_graphs"]
    return {"pieces": pieces, "seconds": seconds, "same_text": texts["eager"] == texts["compiled"]}


def benches(hour: Hour) -> dict[str, Any]:
    """`tacg bench scan | gate | decode | cache`."""
    quick, device = hour.rehearse, hour.device
    llm: Any = load("pocket", device=device)
    prompts, settings = [tuple(llm.encode("12 + 7"))] * 8, Decode(gen_length=16, block_length=16)
    lengths = (32,) if quick else (256, 1024, 2048)
    return {
        "scan": list(scan.measure(quick=quick, device=device)),
        "gate": list(gate.measure(quick=quick, device=device)),
        "decode": list(decode.measure(llm.model, prompts, "pocket", (2,) if quick else (1, 8, 32), settings)),
        "cache": list(cache.measure(lengths, 32 if quick else 64, quick=quick, device=device)),
    }


def speed(hour: Hour) -> list[dict[str, Any]]:
    """Tokens per second and seconds per step of the checkpoints themselves."""
    rows: list[dict[str, Any]] = []
    for name, place in (hour.models or {"rehearsal": "tiny"}).items():
        llm: Any = load(place, device=hour.device, dtype="float32" if hour.rehearse else "bfloat16")
        made = Decode(gen_length=8 if hour.rehearse else 128, block_length=8 if hour.rehearse else 32)
        prompt = tuple(llm.encode("How many legs do three spiders have?"))
        for batch in (1,) if hour.rehearse else (1, 8):
            for policy in ("confidence", "tacg"):
                requests = [Request(prompt, get_policy(policy), made)] * batch
                outputs = Engine(llm.model).generate(requests)
                seconds = _seconds(functools.partial(Engine(llm.model).generate, requests), hour.device)
                rows.append({
                    "model": name, "policy": policy, "batch": batch, "seconds": seconds,
                    "tokens_per_second": sum(len(each.tokens) for each in outputs) / seconds,
                    "steps": outputs[0].steps, "text": llm.text(outputs[0].tokens)[:200],
                })  # fmt: skip
        del llm
    return rows


def reproduce(hour: Hour) -> dict[str, Any]:
    """A few problems of each table of the paper, with its published settings."""
    found = {}
    for table in TABLES[:1] if hour.rehearse else TABLES:
        words = ["--n", "1", "--model", "tiny", "--dry-run"] if hour.rehearse else ["--n", str(hour.n)]
        if not hour.rehearse:
            words += [word for name, place in hour.models.items() for word in ("--model", f"{name}={place}")]
            words += [word for each in hour.data for word in ("--data", each)]
        command = [sys.executable, "-m", "tacg", "reproduce", table, *words, "--device", hour.device, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        last = done.stdout.splitlines()[-1:] or ["null"]
        found[table] = json.loads(last[0]) if done.returncode == 0 else {"error": done.stderr[-2000:]}
    return found


EVERY_PART: tuple[Part, ...] = (
    doctor, families, scans, syncs, kernels, graphs, graph_decodes, parity, compiled, speed, benches, reproduce,
)  # fmt: skip
PARTS = {part.__name__: part for part in EVERY_PART}


def run_hour(hour: Hour, out: Path, only: tuple[str, ...] = ()) -> bool:
    """All parts, or some; the report is written after each. Returns whether all of them ran to their end."""
    if not hour.rehearse and not torch.cuda.is_available():
        raise TacgError("There is no GPU here. `--rehearse` goes through all parts without one.")
    report: dict[str, Any] = {}
    for name in only or PARTS:
        began = time.perf_counter()
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            report[name] = {"ran": True, "found": PARTS[name](hour)}
        except Exception as error:  # goes into the report; the other parts still run
            report[name] = {"ran": False, "error": f"{type(error).__name__}: {error}", "where": traceback.format_exc()}
        report[name]["seconds"] = time.perf_counter() - began
        write_file(out, page(report))
    return all(part["ran"] for part in report.values())


def page(report: dict[str, Any]) -> str:
    """The report: a table of its parts, then the results of each."""
    lines = ["# A GPU hour", "", "| part | ran | wrong | seconds |", "|---|---|---:|---:|"]
    for name, part in report.items():
        wrong = json.dumps(part, default=str).count('"right": false')
        lines.append(f"| {name} | {'yes' if part['ran'] else part['error'][:80]} | {wrong} | {part['seconds']:.0f} |")
    for name, part in report.items():
        told = json.dumps(part.get("found", part), indent=1, default=str)
        lines += ["", f"## {name}", "", (PARTS[name].__doc__ or "").splitlines()[0], "", "```json", told, "```"]
    return "\n".join(lines) + "\n"


def _seconds(run: Callable[[], Any], device: str = "cuda") -> float:
    """The faster of two runs, after one that warms up."""
    from tacg.bench.timing import now

    times = []
    for _ in range(3):
        began = now(device)
        run()
        times.append(now(device) - began)
    return min(times[1:])
