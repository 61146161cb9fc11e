"""Connections: what uvicorn lacks. Its h11 protocol has no deadline for a request's head, counts idle connections
against the limit like active ones, and keeps reading a body after it was answered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from tacg.serve.limits import Limits

READ = 1 << 14  # bytes read at once: thousands of one-byte chunks fit, and are parsed together
FRAMING = 3  # maximum ratio of bytes on the wire to content of a body; one-byte chunks have six
SLACK = 1 << 16  # bytes that are not counted


class Connection(h11.Connection):
    """Refuses a body that is mostly framing: tiny chunks, or chunk extensions. Each costs as much as a large chunk."""

    def __init__(self, most_head: int) -> None:
        super().__init__(h11.SERVER, most_head)
        self._wire = self._content = 0

    def receive_data(self, data: bytes) -> None:
        """Count received bytes."""
        self._wire += len(data)
        super().receive_data(data)

    def next_event(self) -> Any:
        """Count content bytes."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._wire = self._content = 0
        elif isinstance(event, h11.Data):
            self._content += len(event.data)
            if self._wire > FRAMING * self._content + SLACK:
                raise h11.RemoteProtocolError("the body is mostly framing")
        return event


class Wire(H11Protocol, asyncio.BufferedProtocol):
    """One connection. As a buffered protocol it decides how much is read at once.

    A request's head must be complete `limits.head` seconds after its first byte, or after the connection was made. The
    rest of a body that was answered already gets the same time, and `limits.body_bytes`. When there are too many
    connections, the one that has been idle longest is closed for a new one.
    """

    def __init__(self, limits: Limits, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._limits = limits
        self._buffer = bytearray(READ)
        self._due: asyncio.TimerHandle | None = None
        self._since = self.loop.time()
        self._spare = 0  # bytes received after the answer
        self.conn = Connection(h11._connection.DEFAULT_MAX_INCOMPLETE_EVENT_SIZE)

    # -- receiving ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the longest idle connection if there are too many."""
        if len(self.connections) + 1 >= self._limits.connections:
            idle = [each for each in self.connections if isinstance(each, Wire) and each._idle]
            if idle:
                longest = min(idle, key=lambda each: each._since)
                longest.transport.abort()
                self.connections.discard(longest)
        super().connection_made(transport)
        self._watch()

    def get_buffer(self, sizehint: int) -> bytearray:
        """The buffer to read into."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle received bytes."""
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Handle received bytes, but abort if too many come after the answer."""
        if self._answered:
            self._spare += len(data)
            if self._spare > self._limits.body_bytes:
                self.transport.abort()
                return
        super().data_received(data)
        self._watch()

    # -- sending -----------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one."""
        self._since, self._spare = self.loop.time(), 0
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self._cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Send an error, unless a response has begun already, in which case uvicorn would raise."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    # -- deadlines ---------------------------------------------------------------------------------------------------

    @property
    def _idle(self) -> bool:
        """Whether no request has arrived, or its head is incomplete."""
        return self.conn.their_state is h11.IDLE

    @property
    def _answered(self) -> bool:
        """Whether the response is complete but the request is not."""
        return self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete

    def _watch(self) -> None:
        if not (self._idle or self._answered) or self.transport.is_closing():
            self._cancel()
        elif self._due is None and self.timeout_keep_alive_task is None:  # uvicorn watches that one
            self._due = self.loop.call_later(self._limits.head, self.transport.abort)

    def _cancel(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
