"""The only loop: forward, scan, decide, commit, emit. It knows ids, not words."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import torch

from tacg.engine.events import Event, Finished, Started
from tacg.engine.lane import Lane, Row, lane_key
from tacg.errors import LogitsError, TacgError
from tacg.scan import Hidden, Look
from tacg.types import Output

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import Tensor

    from tacg.engine.request import Decode, Request
    from tacg.models.base import Denoiser, Span
    from tacg.policies import Policy


class Engine:
    """Decodes rows in batches. Finished rows leave at once and waiting rows take their place.

    max_rows  rows in the batch at most; the others wait their turn
    """

    def __init__(self, model: Denoiser, max_rows: int = 32) -> None:
        if max_rows < 1:
            raise TacgError(f"`max_rows` must be >= 1, got {max_rows}.")
        self.model = model
        self.max_rows = max_rows
        self._numbers = itertools.count()
        self._waiting: deque[Row] = deque()
        self._lanes: dict[tuple[Policy, Decode, int], Lane] = {}
        self._cancelled: set[int] = set()
        self._at_work: tuple[Lane, set[int]] | None = None
        self._untold: list[Event] = []
        self.lost: set[int] = set()

    def submit(self, request: Request) -> int:
        """Queue a request; returns the row's number."""
        self.check(request)
        device = self.model.device
        prompt = torch.tensor(request.prompt, device=device)
        generator = torch.Generator(device=device).manual_seed(request.decode.seed)
        self._waiting.append(row := Row(next(self._numbers), request, prompt, generator))
        return row.number

    def cancel(self, row: int) -> None:
        """End a row at the next step; it takes part in no further forward."""
        self._cancelled.add(row)

    @property
    def busy(self) -> bool:
        """Whether any row is waiting or under way."""
        return bool(self._waiting) or any(lane.live() for lane in self._lanes.values())

    @torch.no_grad()
    def step(self, *, detail: bool | Mapping[int, bool] = True) -> list[Event]:
        """One denoising step of every row in the batch. Without `detail` only arrivals and results are told.

        detail  for every row alike; or, by row: True tells its steps, False its steps without the proposals

        A row whose logits are unusable ends alone, with finish_reason "error"; the others do not notice.

        If the model or a policy raises, what was done before is told by the next step. Rows that were half way are
        gone, and their numbers are in `lost`; all others can go on. Whoever catches the error empties it.
        """
        events, self._untold = self._untold, []
        try:
            self._step(events, detail)
        except BaseException:
            self._untold = events
            if self._at_work is not None:
                torn, rows = self._at_work
                self.lost |= rows - {event.row for event in events if isinstance(event, Finished)}
                self._lanes = {key: lane for key, lane in self._lanes.items() if lane is not torn}
            raise
        finally:
            self._at_work = None
        return events

    def _step(self, events: list[Event], detail: bool | Mapping[int, bool]) -> None:
        events += self._drop_cancelled()
        self._admit(events)
        views = [(lane, *lane.window()) for lane in self._lanes.values()]
        if not views:
            return
        for lane, columns, observed, eligible, logits, hidden in self._forward(views):
            self._at_work = lane, {row.number for row in lane.live()}
            proposal, noise = lane.draw(logits, observed)
            look = lane.look(logits, hidden, observed, proposal)
            if bool(look.unusable.any()):
                events += self._fail(lane, columns, look)
                scanned = observed
                columns, observed, eligible = lane.window()
                look.only(observed[scanned])
            told = _told(lane, detail)
            signals, decision = lane.decide(look, observed, eligible, noise, True in told.values())
            lane.commit(columns, look, signals, decision)
            if told:
                events += lane.step_events(columns, signals, decision, told)
            events += [Finished(row.number, lane.leave(row)) for row in lane.advance()]
        self._lanes = {key: lane for key, lane in self._lanes.items() if lane.live()}

    def stream(self, requests: Iterable[Request], *, detail: bool = True) -> Iterator[Event]:
        """Decode requests and yield events as they happen; leaving the loop early cancels what is left.

        A stream has the engine to itself: to mix requests as they come, use `submit`, `step` and `cancel`.
        """
        if self.busy:
            raise TacgError("This engine is busy with other rows; use submit() and step(), or another Engine.")
        requests = list(requests)
        for request in requests:
            self.check(request)
        mine = {self.submit(request) for request in requests}
        try:
            while mine:
                for event in self.step(detail=detail):
                    if isinstance(event, Finished):
                        mine.discard(event.row)
                    yield event
        finally:
            self._cancelled |= mine
            self._drop_cancelled()
            self._untold, self.lost = [], set()

    def generate(self, requests: Iterable[Request]) -> list[Output]:
        """Decode requests; outputs in the order of the requests. Raises if a row failed, once the others are done."""
        events = self.stream(requests, detail=False)
        done = {event.row: event.output for event in events if isinstance(event, Finished)}
        outputs = [done[number] for number in sorted(done)]
        refuse_failures(outputs)
        return outputs

    def check(self, request: Request) -> None:
        """Raise if this model cannot decode the request."""
        request.check(self.model.spec)
        if request.decode.memory == "hidden" and not hasattr(self.model, "hidden"):
            name = self.model.spec.name
            raise TacgError(
                f'`memory` "hidden" needs a model that shows its hidden states, {name!r} does not: use fp32.'
            )

    def _admit(self, events: list[Event]) -> None:
        """Let waiting rows in as long as there is room."""
        room = self.max_rows - sum(len(lane.live()) for lane in self._lanes.values())
        while self._waiting and room > 0:
            row = self._waiting[0]
            key = lane_key(row.request, self.model.spec)
            if key not in self._lanes:
                self._lanes[key] = Lane(*key, self.model.spec, self.model.device, self.max_rows)
            self._at_work = self._lanes[key], {row.number, *(each.number for each in self._lanes[key].live())}
            self._waiting.popleft()
            self._lanes[key].join(row)
            self._at_work = None
            events.append(Started(row.number, row.request.prompt, row.request.decode.gen_length))
            room -= 1

    def _drop_cancelled(self) -> list[Event]:
        events: list[Event] = []
        if not self._cancelled:
            return events
        for row in [row for row in self._waiting if row.number in self._cancelled]:
            self._waiting.remove(row)
            policy, prompt = row.request.policy.label, len(row.request.prompt)
            events.append(Finished(row.number, Output("", (), prompt, 0, 0, "cancelled", policy, ())))
        for lane in self._lanes.values():
            for row in lane.live():
                if row.number in self._cancelled:
                    events.append(Finished(row.number, lane.leave(row, "cancelled")))
        self._lanes = {key: lane for key, lane in self._lanes.items() if lane.live()}
        self._cancelled.clear()
        return events

    def _fail(self, lane: Lane, columns: Tensor, look: Look) -> list[Event]:
        """End the rows that have unusable logits."""
        events: list[Event] = []
        for slot in look.slots[look.unusable].tolist():
            row, offset = lane.rows[slot // lane.width], slot % lane.width
            if row is not None:
                place = int(columns[row.slot, offset])
                told = f"Unusable logits (NaN, +inf or only -inf) at row {row.number}, position {place}."
                events.append(Finished(row.number, lane.leave(row, "error", told)))
        return events

    def _forward(
        self, views: list[tuple[Lane, Tensor, Tensor, Tensor]]
    ) -> list[tuple[Lane, Tensor, Tensor, Tensor, Tensor, Hidden | None]]:
        """Call the model once for all rows of all lanes; logits only where they will be scanned. The only place
        that calls the model, and so the only place that counts forwards."""
        pieces: list[Tensor] = []
        spans: list[Span] = []
        select: list[Tensor] = []
        total = 0
        for lane, columns, observed, _ in views:
            shift = [0] * len(lane.rows)
            for row in lane.live():
                span = lane.span(row)
                pieces.append(lane.tokens(row, span))
                shift[row.slot] = total + len(row.prompt) - span.start
                spans.append(span)
                total += len(span)
            slot, offset = observed.nonzero(as_tuple=True)
            select.append(columns[slot, offset] + torch.tensor(shift, device=slot.device)[slot])
        tokens, chosen = torch.cat(pieces), torch.cat(select)
        sizes, model = [len(part) for part in select], cast("Any", self.model)
        parts: list[Hidden | None] = [None] * len(views)
        if any(lane.decode.memory == "hidden" for lane, *_ in views):
            states = model.hidden(tokens, spans, chosen)
            logits = model.head(states)
            shares = zip(views, torch.split(states, sizes), strict=True)
            parts = [Hidden(part, model.head, lane.hidden_ids) for (lane, *_), part in shares]
        else:
            logits = model(tokens, spans, chosen)
        for lane, *_ in views:
            for row in lane.live():
                lane.computed(row)
        made = zip(views, torch.split(logits, sizes), parts, strict=True)
        return [(*view, mine, hidden) for view, mine, hidden in made]


def _told(lane: Lane, detail: bool | Mapping[int, bool]) -> dict[int, bool]:
    """The rows of a lane whose steps are told, each with whether its proposals are."""
    if detail is False:
        return {}
    numbers = [row.number for row in lane.live()]
    return dict.fromkeys(numbers, True) if detail is True else {n: detail[n] for n in numbers if n in detail}


def refuse_failures(outputs: Iterable[Output]) -> None:
    """Raise if any of these rows ended with an error."""
    failed = [output.error for output in outputs if output.error]
    if failed:
        more = f" ({len(failed)} rows in all)" if len(failed) > 1 else ""
        raise LogitsError(f"{failed[0]}{more} Check the model's dtype and the suppressed ids.", [])
