"""The only decoding loop: forward, scan, decide, commit, emit. It handles ids, not text."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import torch

from tacg.engine import footprint
from tacg.engine.batch import Batch, batch_key
from tacg.engine.branches import BranchingBatch
from tacg.engine.checks import check_shown, check_verifier
from tacg.engine.constrained import begin
from tacg.engine.events import Event, Finished, Started, step_events
from tacg.engine.row import Row
from tacg.errors import LogitsError, TacgError
from tacg.scan import Hidden

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping

    from torch import Tensor

    from tacg.engine.graphs import Graphs
    from tacg.engine.request import Request
    from tacg.models.base import Denoiser, Span
    from tacg.types import Output

    ForwardInput = tuple[Tensor, list[Span], Tensor]


class Engine:
    """Decodes rows in batches. Finished rows leave at once, and waiting rows take their place.

    max_rows  maximum number of rows in the batch; the others wait
    memory    bytes that these rows may take, as estimated (`footprint`); None: what the device has to spare
    verifier  an autoregressive model with the same vocabulary, for policies whose drafts are verified (`apd`)
    """

    def __init__(
        self, model: Denoiser, max_rows: int = 32, verifier: Denoiser | None = None, memory: int | None = None
    ) -> None:
        if max_rows < 1:
            raise TacgError(f"`max_rows` must be >= 1, got {max_rows}.")
        self.model, self.verifier = model, verifier
        self.max_rows = self._room = max_rows  # rows that fit memory, as far as known
        if memory is None and model.device.type != "cpu":
            memory = footprint.usable_memory(model.device)
        self.memory = memory
        self.graphs: Graphs | None = None  # see `engine_with_graphs`
        self._numbers = itertools.count()
        self._waiting: deque[Row] = deque()
        self._batches: dict[Hashable, Batch] = {}
        self._cancelled: set[int] = set()
        self._at_work: tuple[Batch, set[int]] | None = None
        self._untold: list[Event] = []
        self.lost: set[int] = set()
        self._torn: list[Row] = []  # the rows that the last step lost

    def submit(self, request: Request) -> int:
        """Queue a request; returns the row's number."""
        self.check(request)
        row = self._row(next(self._numbers), request)
        self._waiting.append(row)
        return row.number

    def _row(self, number: int, request: Request, *, again: bool = False) -> Row:
        spec = self.model.spec
        answer = list(request.canvas) or [spec.mask_id] * request.decode.gen_length
        forced: set[int] = set()
        if request.constraint is not None:
            answer, forced = begin(request, answer, spec.mask_id)
        size = 0 if self.memory is None else footprint.footprint(request, self.model).total
        return Row(number, request, answer, request.blocks(spec), bytes=size, again=again, forced=forced)

    def cancel(self, row: int) -> None:
        """End a row at the next step; it takes part in no more forwards."""
        self._cancelled.add(row)

    @property
    def busy(self) -> bool:
        """Whether any row is waiting or being decoded."""
        return bool(self._waiting) or any(batch.live() for batch in self._batches.values())

    def step(self, *, detail: bool | Mapping[int, bool] = True) -> list[Event]:
        """One denoising step of every row in the batch. Without `detail`, only starts and results are reported.

        detail  one value for all rows; or by row: True reports its steps, False its steps without proposals

        A row whose logits are unusable ends alone, with finish_reason "error"; other rows are not affected.

        If the model or a policy raises, the next step reports what was done before. Unfinished rows of that batch are
        dropped and their numbers added to `lost`; all others can continue. The caller who catches the error clears it.
        """
        events, self._untold, self._torn = self._untold, [], []
        try:
            # Inference mode saves less than entering it costs. Tables and caches that a model keeps must be usable in
            # any mode, also for training, so a caller's inference mode is left.
            caller = torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()
            with caller, torch.no_grad():
                self._step(events, detail)
        except BaseException:
            self._untold = events
            if self._at_work is not None:
                torn, rows = self._at_work
                self.lost |= rows - {event.row for event in events if isinstance(event, Finished)}
                self._torn = [row for row in torn.live() if row.number in self.lost]
                self._batches = {key: batch for key, batch in self._batches.items() if batch is not torn}
            raise
        finally:
            self._at_work = None
        return events

    def _step(self, events: list[Event], detail: bool | Mapping[int, bool]) -> None:
        if self._cancelled:
            events += self._drop_cancelled()
        self._admit(events)
        batches = list(self._batches.values())
        stepped = None if self.graphs is None else self.graphs.step(batches)
        forwards = self._forward(batches) if stepped is None else []
        for number, batch in enumerate(batches):
            rows = batch.live()
            self._at_work = batch, {row.number for row in rows}
            told = _told(rows, detail)
            result = batch.read(*(stepped or batch.step(*forwards[number], eager=True in told.values())))
            events += step_events(rows, result, told) if told else []
            for row in rows:
                if row.slot in result.failed:
                    place = result.failed[row.slot]
                    error = f"Unusable logits (NaN, +inf or only -inf) at row {row.number}, position {place}."
                    events.append(Finished(row.number, batch.leave(row, "error", error)))
                elif row.done:
                    events.append(Finished(row.number, batch.leave(row)))
            if not batch.live():
                self._drop_empty()

    def stream(self, requests: Iterable[Request], *, detail: bool | Mapping[int, bool] = True) -> Iterator[Event]:
        """Decode requests and yield events as they happen; leaving the loop early cancels the remaining rows.

        detail  as for `step`; rows are numbered in the order of the requests, from 0 for a new engine

        Without `detail`, a step that runs out of memory is taken again with fewer rows: nobody has seen them yet.

        A stream needs an idle engine. To add requests as they arrive, use `submit`, `step` and `cancel`.
        """
        if self.busy:
            raise TacgError("This engine is busy with other rows; use submit() and step(), or another Engine.")
        requests = list(requests)
        for request in requests:
            self.check(request)
        mine: set[int] = set()
        try:
            for request in requests:
                mine.add(self.submit(request))
            while mine:
                for event in self._step_or_shed() if detail is False else self.step(detail=detail):
                    if isinstance(event, Finished):
                        mine.discard(event.row)
                    yield event
        finally:
            self._cancelled |= mine
            if self._cancelled:
                self._drop_cancelled()
            self._untold, self.lost = [], set()

    def _step_or_shed(self) -> list[Event]:
        try:
            return self.step(detail=False)
        except Exception as error:
            if not footprint.out_of_memory(error):
                raise
            shed, self._room = footprint.shed(self._batches.values(), self._torn)
            if not shed:
                raise
        footprint.free_memory(self.model.device)  # here, because the error has held tensors
        self._drop_empty()
        self.lost -= {row.number for row in shed}
        self._waiting.extendleft(self._row(row.number, row.request, again=True) for row in shed)
        return []

    def generate(self, requests: Iterable[Request]) -> list[Output]:
        """Decode requests; outputs are in the same order. Raises if a row failed, after the others are done."""
        events = self.stream(requests, detail=False)
        done = {event.row: event.output for event in events if isinstance(event, Finished)}
        outputs = [done[number] for number in sorted(done)]
        refuse_failures(outputs)
        return outputs

    def check(self, request: Request) -> None:
        """Raise if this model cannot decode the request."""
        request.check(self.model.spec)
        if request.decode.memory == "hidden" or request.policy.needs.attention:
            check_shown(request, self.model)
        if request.policy.needs.verifier is not None:
            check_verifier(request, self.verifier)

    def _admit(self, events: list[Event]) -> None:
        """Admit waiting rows while there is room."""
        room = self._room - sum(len(batch.live()) for batch in self._batches.values())
        while self._waiting and room > 0 and self._fits(self._waiting[0]):
            row, spec = self._waiting[0], self.model.spec
            started = Started(row.number, row.request.prompt, len(row.answer), tuple(row.answer))
            if spec.mask_id not in row.answer:  # its constraint forces every token
                self._waiting.popleft()
                events += [started, Finished(row.number, row.output(spec.mask_id, spec.eos_ids))]
                continue
            key = batch_key(row.request)
            if key not in self._batches:
                kind = BranchingBatch if row.request.policy.needs.branches else Batch
                self._batches[key] = kind(row.request, spec, self.model.device, self.max_rows, self.verifier)
            batch = self._batches[key]
            self._at_work = batch, {row.number, *(each.number for each in batch.live())}
            self._waiting.popleft()
            batch.join(row)
            self._at_work = None
            if not row.again:
                events.append(started)
            room -= 1

    def _fits(self, row: Row) -> bool:
        return self.memory is None or footprint.fits(self._batches, row, batch_key(row.request), self.memory)

    def _drop_cancelled(self) -> list[Event]:
        events: list[Event] = []
        spec = self.model.spec
        for row in [row for row in self._waiting if row.number in self._cancelled]:
            self._waiting.remove(row)
            events.append(Finished(row.number, row.output(spec.mask_id, spec.eos_ids, "cancelled")))
        for batch in self._batches.values():
            for row in batch.live():
                if row.number in self._cancelled:
                    events.append(Finished(row.number, batch.leave(row, "cancelled")))
        self._drop_empty()
        self._cancelled.clear()
        return events

    def _drop_empty(self) -> None:
        self._batches = {key: batch for key, batch in self._batches.items() if batch.live()}

    def _forward(self, batches: list[Batch]) -> list[tuple[Tensor, Hidden | None]]:
        """Call the model once for all rows of all batches, with logits only where they are scanned. The engine
        calls the model nowhere else, so forwards are counted only here."""
        if not batches:
            return []
        inputs = [batch.forward_input() for batch in batches]
        tokens, spans, select = inputs[0] if len(inputs) == 1 else _end_to_end(inputs)
        sizes, model = [len(where) for _, _, where in inputs], cast("Any", self.model)
        hidden: list[Hidden | None] = [None] * len(batches)
        if any(batch.decode.memory == "hidden" for batch in batches):
            states = model.hidden(tokens, spans, select)
            logits = model.head(states)
            parts = zip(batches, torch.split(states, sizes), strict=True)
            hidden = [Hidden(part, model.head, batch.suppressed) for batch, part in parts]
        else:
            logits = model(tokens, spans, select)
        for batch in batches:
            batch.computed()
        each = [logits] if len(batches) == 1 else torch.split(logits, sizes)
        return list(zip(each, hidden, strict=True))


def _end_to_end(inputs: list[ForwardInput]) -> ForwardInput:
    """Join the forward inputs of several batches into one."""
    starts = itertools.accumulate((len(tokens) for tokens, _, _ in inputs), initial=0)
    select = torch.cat([where + start for start, (_, _, where) in zip(starts, inputs, strict=False)])
    return torch.cat([tokens for tokens, _, _ in inputs]), [span for _, spans, _ in inputs for span in spans], select


def _told(rows: list[Row], detail: bool | Mapping[int, bool]) -> dict[int, bool]:
    """The rows whose steps are reported, each with whether its proposals are."""
    if detail is False:
        return {}
    numbers = [row.number for row in rows]
    return dict.fromkeys(numbers, True) if detail is True else {n: detail[n] for n in numbers if n in detail}


def refuse_failures(outputs: Iterable[Output]) -> None:
    """Raise if any of these rows ended with an error."""
    failed = [output.error for output in outputs if output.error]
    if failed:
        more = f" ({len(failed)} rows in all)" if len(failed) > 1 else ""
        raise LogitsError(f"{failed[0]}{more} Check the model's dtype and the suppressed ids.", [])
