"""A step as a CUDA graph: forward, scan, decision and commit are captured once, then launched as a whole.

A graph keeps the addresses of what it reads and writes. So with graphs, every step writes its results back into the
tensors that it started from (`step_in_place`): canvas, state of the rows, trajectories. Tables that change when a row
joins, leaves or enters a block are copied into those that were there at the capture, if the shapes are the same.

A bucket is everything else that a graph keeps: shapes, the number of tokens, numeric settings that all rows share, and
for attention the longest row, rounded up. Its first step runs as usual, the second is captured, the others are
replays. What the host reads from a step, the report, is read outside.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tacg.devices import current_device
from tacg.engine.loop import Engine
from tacg.knobs import Knobs, own_knobs
from tacg.scan.memory import STORES
from tacg.scan.step_scan import backend_for

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from tacg.engine.advance import AnyReport, Boards
    from tacg.engine.batch import Batch
    from tacg.engine.plan import Plan
    from tacg.models.base import Denoiser, Spans
    from tacg.types import Decision, Signals

    Outcome = tuple[AnyReport, Signals, Decision]
    Step = Callable[[], Outcome]

MOST = 16  # graphs of a batch; the oldest is dropped for another


class CaptureOnGpu:
    """Records the kernels of a step without running them; returns what launches them again, as one.

    All graphs share their memory: what one has computed is read by the host before another is replayed.
    """

    pool: Any = None

    def __call__(self, step: Step) -> Step:
        """Capture a step."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self.pool, capture_error_mode="thread_local"):
            outcome = step()
        self.pool = graph.pool()

        def replay() -> Outcome:
            graph.replay()
            return outcome

        return replay


class Inputs(NamedTuple):
    """What a step reads beyond the state of its rows: numbers and shapes that a graph keeps, and tables."""

    bucket: Hashable
    tables: list[Tensor]


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured step, the tables that it reads, and the plan and boards of the time of the capture."""

    replay: Step
    tables: list[Tensor]
    plan: Plan
    boards: Boards


@dataclass(slots=True)
class Shelf:
    """The graphs of a batch by bucket, and the buckets that were run. `spans`: some whose tables the model has made."""

    graphs: dict[Hashable, Captured] = field(default_factory=dict)
    ran: set[Hashable] = field(default_factory=set)
    spans: Spans | None = None


class Graphs:
    """The graphs of an engine.

    capture   turns a step into one that reads and writes at the same addresses; tests replace it
    why_not   why graphs are no longer used: the error of a capture
    """

    def __init__(self, model: Denoiser, capture: Callable[[Step], Step] | None = None) -> None:
        self.model, self.capture = model, capture or CaptureOnGpu()
        self.captures = self.replays = 0
        self.why_not = "" if model.device.type == "cuda" else f"CUDA graphs need a CUDA device, not {model.device}"
        self._shelves: WeakKeyDictionary[Batch, Shelf] = WeakKeyDictionary()
        self._ready: tuple[Plan, Captured] | None = None  # the graph whose tables are those of a plan
        if self.why_not:
            warnings.warn(f"`graphs` is ignored: {self.why_not}.", stacklevel=3)

    def step(self, batches: Sequence[Batch]) -> Outcome | None:
        """One step up to the report that the host reads. None: to be run as usual."""
        if self.why_not or len(batches) != 1 or not _is_capturable(batches[0]):
            return None
        batch, plan = batches[0], batches[0].planned()
        captured = self._for(batch, plan)
        if captured is None:
            outcome, shelf = step_in_place(batch, self.model), self._shelves[batch]
            if _has_tables(batch, plan):
                shelf.spans = plan.spans
                shelf.ran.add(inputs_of(batch, plan).bucket)
        else:
            with current_device(batch.canvas):
                outcome = captured.replay()
            self.replays += 1
        batch.in_block = batch.history = None  # what was looked up belongs to the graph
        batch.computed()
        return outcome

    def _for(self, batch: Batch, plan: Plan) -> Captured | None:
        """The graph for this plan, with its tables filled in. None: there is none yet."""
        if self._ready is not None and self._ready[0] is plan and self._ready[1].boards is batch.boards:
            return self._ready[1]
        self._ready, shelf = None, self._shelves.setdefault(batch, Shelf())
        if not plan.spans.known and shelf.spans is not None:
            plan.spans.known = {key: rows.of(plan.spans) for key, rows in shelf.spans.known.items()}
        if not _has_tables(batch, plan):
            return None
        inputs = inputs_of(batch, plan)
        captured = shelf.graphs.get(inputs.bucket)
        if captured is not None:
            _copy(captured.tables, inputs.tables)
        elif inputs.bucket in shelf.ran:
            captured = self._captured(batch, plan, inputs)
        if captured is not None:
            self._ready = plan, captured
        return captured

    def _captured(self, batch: Batch, plan: Plan, inputs: Inputs) -> Captured | None:
        policy, state = batch.policy, (batch.boards, batch.trajectories.seen, batch.trajectories.state, batch.cut)

        def step() -> Outcome:
            now = batch.plan, batch.policy
            batch.plan, batch.policy = plan, policy  # their tables are those that are overwritten
            try:
                return step_in_place(batch, self.model)
            finally:
                batch.plan, batch.policy = now

        try:
            with current_device(batch.canvas):
                replay = self.capture(step)
        except Exception as error:  # whatever a policy or a model does that a graph cannot hold
            self.why_not = f"a step could not be captured ({type(error).__name__}: {error})"
            warnings.warn(f"`graphs` is off from here on: {self.why_not}.", stacklevel=2)
            return None
        finally:
            batch.boards, batch.trajectories.seen, batch.trajectories.state, batch.cut = state
        self.captures += 1
        graphs = self._shelves[batch].graphs
        if len(graphs) >= MOST:
            del graphs[next(iter(graphs))]
        graphs[inputs.bucket] = Captured(replay, inputs.tables, plan, batch.boards)
        return graphs[inputs.bucket]


def engine_with_graphs(model: Denoiser, *words: Any, **named: Any) -> Engine:
    """An engine whose steps are captured and replayed, if the device can."""
    engine = Engine(model, *words, **named)
    engine.graphs = Graphs(model)
    return engine


def step_in_place(batch: Batch, model: Denoiser) -> Outcome:
    """A step whose results are written back into the tensors that it started from."""
    boards, trajectories = batch.boards, batch.trajectories
    before, seen, state = _state(batch), trajectories.seen, trajectories.state
    batch.in_block = batch.history = None  # what depends on blocks is looked up in every step
    tokens, spans, select = batch.forward_input()
    report, signals, decision = batch.step(model(tokens, spans, select), None, eager=True)
    if signals.observed is boards.masked:  # which is overwritten now
        signals = replace(signals, observed=signals.observed.clone())
    after = _state(batch)
    if [(each.shape, each.dtype) for each in before] == [(each.shape, each.dtype) for each in after]:
        _copy(before, after)
        batch.boards, trajectories.seen, trajectories.state = boards, seen, state
    return report, signals, decision


def inputs_of(batch: Batch, plan: Plan) -> Inputs:
    """What the step of this plan reads beyond the state of its rows."""
    tables = [plan.pack, plan.offset, *([] if plan.shadow is None else [plan.shadow])]
    numbers: list[Hashable] = [plan.inside, batch.cut]
    for rows in plan.spans.known.values():
        kept, more = rows.fixed()
        numbers.append(kept)
        tables += more
    for name, value in _knobs(batch.policy):
        if isinstance(value, Tensor):
            tables.append(value)
            numbers.append(name)
        else:
            numbers.append((name, value))
    memory, more = batch.trajectories.memory, [batch.canvas, batch.ruler, batch.origins, batch.suppressed]
    more += [*([] if batch.windows is None else [batch.windows]), *batch.store.layers]
    more += [each for name in ("gauge", "norm", "age", *STORES) if (each := getattr(memory, name)) is not None]
    places = [(each.data_ptr(), each.shape) for each in (*_state(batch), *more)]
    shapes = [(each.shape, each.dtype) for each in tables]
    return Inputs((tuple(numbers), tuple(shapes), tuple(places)), tables)


def _is_capturable(batch: Batch) -> bool:
    """Whether all of a step happens on the device: scanned by our kernels, one canvas per row, no constraint."""
    scan = backend_for(batch.decode.scan, batch.device, torch.float32, batch.decode.memory)
    simple = batch.constrained is None and batch.attended is None and not batch.needs.branches
    return hasattr(scan, "scan") and simple and batch.needs.verifier is None


def _has_tables(batch: Batch, plan: Plan) -> bool:
    """Whether the model has made its tables for this plan, on the device of the batch."""
    return bool(plan.spans.known) and all(rows.device == batch.device for rows in plan.spans.known.values())


def _state(batch: Batch) -> list[Tensor]:
    """Everything that a step changes, except the canvas and the V-sized history, which it writes in place."""
    return [*batch.boards, batch.trajectories.seen, *_tensors(batch.trajectories.state)]


def _tensors(state: Any) -> list[Tensor]:
    if isinstance(state, dict):
        return [each for value in state.values() for each in _tensors(value)]
    return [state]


def _knobs(policy: Knobs) -> list[tuple[str, Any]]:
    mine = [(each.name, getattr(policy, each.name)) for each in own_knobs(type(policy))]
    return [(policy_name(policy), None), *mine, *(each for group in policy.groups().values() for each in _knobs(group))]


def policy_name(policy: Knobs) -> str:
    """Which class of settings this is."""
    return f"{type(policy).__module__}.{type(policy).__qualname__}"


def _copy(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Overwrite tensors. A value may be another one of them: then it is saved first."""
    fixed = {each.data_ptr() for each in into}
    pairs = [(old, new) for old, new in zip(into, values, strict=True) if old is not new]
    saved = [(old, new.clone() if new.data_ptr() in fixed else new) for old, new in pairs]
    for old, new in saved:
        old.copy_(new)
