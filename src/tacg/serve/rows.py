"""The rows of one HTTP request as seen from the event loop: submitted, observed and cancelled."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tacg.engine.events import Step
from tacg.serve import refusal
from tacg.serve.job import Done, Job, Told
from tacg.serve.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from starlette.types import Receive

    from tacg.serve.batcher import Batcher
    from tacg.serve.parse_request import Ask

T = TypeVar("T")
BACKLOG = 1 << 15  # maximum of unread signals and events; the signals of one position take about 1 KB


class GoneError(Exception):
    """The client has closed the connection."""


class Rows:
    """A context manager: entering submits the rows, leaving cancels those that are not done."""

    def __init__(self, batcher: Batcher, ask: Ask, *, trace: bool = False) -> None:
        self._batcher = batcher
        self._queue: asyncio.Queue[tuple[int, Told]] = asyncio.Queue()
        self._heard = self._read = 0  # totals; the first is updated in the batcher's thread, the second in the loop
        self._loop = asyncio.get_running_loop()
        rows = ask.rows()
        self.jobs = [
            Job(
                row, partial(self._hear, index), ask.deadline, ask.stop, stream=ask.stream, trace=trace,
                logprobs=ask.logprobs,
            )
            for index, row in enumerate(rows)
        ]  # fmt: skip

    def __enter__(self) -> Self:
        self._batcher.submit(self.jobs)
        return self

    def __exit__(self, *_: Any) -> None:
        self._batcher.cancel(self.jobs)

    def _hear(self, index: int, told: Told) -> None:
        """Called in the batcher's thread."""
        self._heard += _weight(told)
        slow = self._heard - self._read > BACKLOG and not isinstance(told, Refusal)
        self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, refusal.slow_reader() if slow else told))
        if slow:
            raise GoneError  # treated like a closed connection

    async def events(self) -> AsyncIterator[tuple[int, Told]]:
        """The events of all rows until they are done. A refusal of one row ends all."""
        left = len(self.jobs)
        while left:
            index, told = await self._queue.get()
            self._read += _weight(told)
            if isinstance(told, Refusal):
                raise told
            left -= isinstance(told, Done)
            yield index, told


def _weight(told: Told) -> int:
    """How much an event adds to the backlog: 1, plus 1 for each observed position."""
    return 1 + (len(told.proposals) if isinstance(told, Step) else 0)


async def disconnected(receive: Receive) -> None:
    """Return when the client disconnects. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`; if the client disconnects first, `work` is cancelled and `GoneError` raised."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise GoneError
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
