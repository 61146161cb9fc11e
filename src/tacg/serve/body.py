"""Request bodies: JSON, read within limits, and taken apart field by field so that none is overlooked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect

from tacg.errors import TacgError, unknown
from tacg.serve.refusal import Refusal, bad, crowded, too_large

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from starlette.requests import Request

    from tacg.serve.limits import Limits

NAME = 64  # characters of the client's input that are quoted back


class Intake:
    """Receives bodies. Each has its limit, and all bodies that are not parsed yet must fit within `flight_bytes`.

    When that total is reached, a body is refused once it is larger than an equal share per connection. So clients with
    large bodies do not keep out small ones.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self._held = limits, 0
        self._share = limits.flight_bytes // limits.connections

    @contextlib.asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytearray]:
        """A request's body. Refused if too large, too slow or not declared as JSON (which forces a CORS preflight)."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            told = f"`Content-Type` must be application/json, got {kind[:NAME]!r}."
            raise Refusal(415, told, code="unsupported_media")
        limit, seconds, body = self._limits.body_of(request.url.path), self._limits.stall, bytearray()
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    body += chunk
                    self._held += len(chunk)
                    if len(body) > limit:
                        raise too_large(limit)
                    if self._held > self._limits.flight_bytes and len(body) > self._share:
                        raise crowded(self._limits.flight_bytes)
            yield body
        except TimeoutError:
            raise Refusal(408, f"The body did not arrive within {seconds:g} s.", code="body_timeout") from None
        except ClientDisconnect:
            raise Refusal(400, "The body ended early.", code="disconnected") from None
        finally:
            self._held -= len(body)


def parse_json(body: bytes | bytearray) -> Any:
    """Parse strict JSON: UTF-8, finite numbers, and no duplicate names in an object."""
    try:
        return json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_constant, parse_float=_number)
    except RecursionError:
        raise bad("The body is nested too deeply.", code="invalid_json") from None
    except ValueError as error:  # Unicode and JSON errors, and integers of thousands of digits
        raise bad(f"The body is not valid JSON: {str(error)[:200]}.", code="invalid_json") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name occurs twice in an object")
    return made


def _constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _number(word: str) -> float:
    value = float(word)
    if abs(value) == float("inf"):
        raise ValueError("a number is too large")
    return value


class Body:
    """The fields of a request. Each is taken once; remaining fields are refused at the end."""

    def __init__(self, document: Any) -> None:
        if not isinstance(document, dict):
            raise bad(f"The body must be a JSON object, got {brief(document)}.")
        self._left: dict[str, Any] = dict(document)

    def __contains__(self, name: str) -> bool:
        return self._left.get(name) is not None

    def take(self, name: str, wants: str, right: Callable[[Any], bool], default: Any = None) -> Any:
        """A field, or the default if it is missing or null. `wants` describes what `right` checks."""
        value = self._left.pop(name, None)
        if value is None:
            return default
        if not right(value):
            raise bad(f"`{name}` must be {wants}, got {brief(value)}.", name)
        return value

    def flag(self, name: str) -> bool:
        """A boolean field; false if it is missing."""
        return bool(self.take(name, "true or false", lambda value: isinstance(value, bool), False))

    def drop_neutral(self, neutral: Mapping[str, Iterable[Any]]) -> None:
        """Drop unsupported fields if their value changes nothing; otherwise refuse them."""
        for name, values in neutral.items():
            value = self._left.pop(name, None)
            if value is None or any(_same(value, each) for each in values):
                continue
            allowed = " or ".join(json.dumps(each) for each in values)
            more = f" Only {allowed}, which changes nothing, is accepted;" if allowed else " Please"
            told = f"`{name}` is not supported by this server.{more} leave it out."
            raise bad(told, name, "unsupported_parameter")

    def settings(self, known: Iterable[str], taken: Iterable[str] = ()) -> dict[str, Any]:
        """All remaining fields as settings. Unknown names are refused with the nearest match, which may also be one of
        the fields `taken` before.
        """
        known, taken = set(known), set(taken)
        for name, value in list(self._left.items()):
            if value is None and name in taken:
                del self._left[name]  # null means missing
            elif name not in known:
                told = unknown("field", name[:NAME], (known | taken) - {name})
                raise bad(str(told), name[:NAME], "unknown_parameter")
        found, self._left = self._left, {}
        return found


def brief(value: Any) -> str:
    """A client's value, shortened for a message."""
    text = json.dumps(value) if not isinstance(value, dict | list) else f"{type(value).__name__} of {len(value)}"
    return text if len(text) <= NAME else text[:NAME] + "…"


def is_int(value: Any) -> bool:
    """Whether it is an integer; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def blame(error: TacgError, names: Iterable[str]) -> Refusal:
    """The library's error message as a refusal, with the field it mentions."""
    told = str(error)
    about = [name for name in re.findall(r"`(\w+)`", told) if name in set(names)]
    return bad(told[:1000], about[0] if about else None)
