"""Error responses: an HTTP status and a document in OpenAI's error format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

NOT_AGAIN = {"x-should-retry": "false"}  # OpenAI clients retry server errors unless this header says not to


@dataclass(eq=False)
class Refusal(Exception):  # noqa: N818 - it is handed around as often as it is raised
    """An error for the client. `param` names the faulty field, `code` is for programs."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The response body."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def bad(message: str, param: str | None = None, code: str | None = None) -> Refusal:
    """An error of the client."""
    return Refusal(400, message, param=param, code=code)


def too_large(limit: int) -> Refusal:
    """More bytes than one request may have."""
    return Refusal(413, f"The body must not be larger than {limit} bytes.", code="body_too_large")


def crowded(limit: int) -> Refusal:
    """More bytes than all requests together may have."""
    told = f"Bodies of more than {limit} bytes in all are being received, which is the limit; try again in a moment."
    return Refusal(503, told, "server_error", code="too_many_bytes", headers={"retry-after": "1"})


def full(rows: int, queue: int, seconds: int) -> Refusal:
    """The queue is full."""
    told = f"All {rows} rows are busy and {queue} more wait, which is the limit; try again in {seconds} s."
    return Refusal(429, told, "rate_limit_error", code="queue_full", headers={"retry-after": str(seconds)})


def leaving() -> Refusal:
    """The server is shutting down."""
    told = "The server is shutting down and takes no more requests; try again in a moment, or on another one."
    return Refusal(503, told, "server_error", code="shutting_down", headers={"retry-after": "5"})


def cut_off() -> Refusal:
    """The server shut down before the answer was complete."""
    told = "The server shut down before this answer was complete; send the request again."
    return Refusal(503, told, "server_error", code="shutting_down", headers={"retry-after": "5"})


def late(seconds: float) -> Refusal:
    """The deadline has passed."""
    told = f"The answer was not complete within {seconds:g} s; ask for fewer tokens, or try again later."
    return Refusal(504, told, "server_error", code="deadline_exceeded", headers=NOT_AGAIN)


def broken() -> Refusal:
    """The server has failed and is ending."""
    told = "The server's device has failed and the server is stopping; try again in a moment, or on another server."
    return Refusal(503, told, "server_error", code="server_failed", headers={"retry-after": "30"})


def no_memory(*, alone: bool) -> Refusal:
    """There is not enough memory for the row, now or at all."""
    told = "There is not enough memory for this request"
    if alone:
        told += ", even alone; shorten its prompt, or ask for fewer tokens."
        return Refusal(503, told, "server_error", code="out_of_memory", headers=NOT_AGAIN)
    told += " next to the others, and part of its answer was sent already; send it again in a moment."
    return Refusal(503, told, "server_error", code="out_of_memory", headers={"retry-after": "5"})


def interrupted() -> Refusal:
    """The row would have to start again, and might then give another answer."""
    told = "A step of the batch failed, and part of this answer was sent already; send the request again."
    return Refusal(503, told, "server_error", code="interrupted", headers={"retry-after": "1"})


def slow_reader() -> Refusal:
    """The client reads too slowly."""
    told = "The steps of this decode are read too slowly; read faster, or ask for fewer positions at once."
    return Refusal(503, told, "server_error", code="slow_reader", headers=NOT_AGAIN)


def failed(reason: str) -> Refusal:
    """The row could not be decoded; other rows are not affected."""
    told = f"This request could not be decoded: {reason}"
    return Refusal(500, told, "server_error", code="decode_failed", headers=NOT_AGAIN)
