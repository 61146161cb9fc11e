"""Access control, headers of every response, and one log line per request."""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import time
import traceback
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

from tacg.errors import TacgError
from tacg.serve.refusal import NOT_AGAIN, Refusal, too_large

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tacg.serve.limits import Limits
    from tacg.serve.metrics import Metrics

log = logging.getLogger("tacg.serve")

POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """Who may use the server.

    api_key      what clients must send as `Authorization: Bearer …`; None: no key
    hosts        host names that requests may use for this server; None: any. This stops pages of other sites whose
                 name was made to point here (DNS rebinding)
    origins      sites whose pages may read responses; "*": all
    log_prompts  write prompts into the log
    """

    api_key: str | None = None
    hosts: frozenset[str] | None = None
    origins: tuple[str, ...] = ()
    log_prompts: bool = False

    @classmethod
    def bound_to(
        cls, host: str, api_key: str | None, *, insecure: bool = False, also: Collection[str] = (), **more: Any
    ) -> Access:
        """The rules for a server on this interface; raises if others could reach it without --api-key or --insecure."""
        if api_key is not None and not api_key:
            raise TacgError("`--api-key` must not be empty.")
        if is_loopback(host):
            return cls(api_key, frozenset({*LOCAL, host.lower(), *also}), **more)
        if api_key is None and not insecure:
            raise TacgError(
                f"`--host` {host} opens the server to other machines: set a key with --api-key (or TACG_API_KEY), or "
                "pass --insecure if anybody may use this server."
            )
        return cls(api_key, frozenset({*LOCAL, *also}) if also else None, **more)


LOCAL = ("localhost", "127.0.0.1", "::1")  # names by which the server can always be reached from its own machine


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """Wraps the application. If there is a key, every request needs it, except for `public` paths."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        limits: Limits,
        metrics: Metrics,
        public: Collection[str],
        endpoints: Collection[str],
    ) -> None:
        self._app, self._access, self._limits, self._metrics = app, access, limits, metrics
        self._public, self._endpoints = frozenset(public), frozenset(endpoints)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        visit = _Visit(send, self._granted(headers))
        note: dict[str, Any] = scope.setdefault("tacg.note", {})
        try:
            if answer := self._preflight(scope, headers):
                await answer(scope, receive, visit.send)
                return
            self._check(scope, headers)
            await self._app(scope, receive, visit.send)
        except Refusal as refused:
            await refused_response(refused)(scope, receive, visit.send)
        except Exception as error:
            note["error"] = type(error).__name__
            _log_fault(visit.id, error, with_words=self._access.log_prompts)
            if not visit.status:
                await refused_response(FAULT)(scope, receive, visit.send)
        finally:
            self._leave(scope, visit, note)

    # -- requests ----------------------------------------------------------------------------------------------------

    def _check(self, scope: Scope, headers: Headers) -> None:
        # If there are two lengths, a proxy may use the other one and take the rest of the body for another request.
        # The connection is closed, because what follows cannot be trusted.
        if "transfer-encoding" in headers and ("content-length" in headers or scope["http_version"] == "1.0"):
            told = "`Transfer-Encoding` must come alone and with HTTP/1.1: leave `Content-Length` out."
            raise Refusal(400, told, code="ambiguous_length", headers={"connection": "close"})
        key = self._access.api_key
        if key is not None and scope["path"] not in self._public:
            kind, _, given = headers.get("authorization", "").partition(" ")
            right = hmac.compare_digest(given.strip().encode("latin-1"), key.encode()) and kind.lower() == "bearer"
            if not right:
                told = "The API key is wrong." if given else "An API key is needed."
                told += " Send it as `Authorization: Bearer KEY`."
                who = {"www-authenticate": "Bearer"}
                raise Refusal(401, told, "authentication_error", code="invalid_api_key", headers=who)
        host = _host_name(headers.get("host", ""))
        if self._access.hosts is not None and host not in self._access.hosts:
            told = f"This server does not answer to the name {host[:64]!r}; start it with --allow-host {host[:64]}."
            raise Refusal(403, told, "permission_error", code="wrong_host")
        origin = headers.get("origin")
        if origin is not None and not self._may_read(origin) and _site(origin) != headers.get("host"):
            told = f"Pages of {origin[:64]!r} may not use this server; start it with --cors {origin[:64]}."
            raise Refusal(403, told, "permission_error", code="wrong_origin")
        length, limit = headers.get("content-length", ""), self._limits.body_of(scope["path"])
        if length.isdecimal() and int(length[:20]) > limit:
            raise too_large(limit)

    def _may_read(self, origin: str) -> bool:
        return origin in self._access.origins or "*" in self._access.origins

    def _granted(self, headers: Headers) -> dict[str, str]:
        """The headers that let a page of another site read the response."""
        origin = headers.get("origin")
        if origin is None or not self._may_read(origin):
            return {} if self._access.origins else {"cross-origin-resource-policy": "same-origin"}
        return {"access-control-allow-origin": origin, "vary": "Origin"}

    def _preflight(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a browser's CORS preflight request."""
        asks = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        if not asks or not self._may_read(headers.get("origin", "")):
            return None
        wanted = headers.get("access-control-request-headers", "authorization, content-type")
        return Response(
            status_code=204,
            headers={"access-control-allow-methods": "GET, POST", "access-control-allow-headers": wanted},
        )

    # -- responses ---------------------------------------------------------------------------------------------------

    def _leave(self, scope: Scope, visit: _Visit, note: dict[str, Any]) -> None:
        seconds = time.perf_counter() - visit.began
        path = scope["path"] if scope["path"] in self._endpoints else "other"
        status = note.pop("status", visit.status)
        self._metrics.add("tacg_requests_total", endpoint=path, status=status)
        self._metrics.took(seconds, endpoint=path)
        if not self._access.log_prompts:
            note.pop("prompt", None)
        words = " ".join(f"{name}={json.dumps(value)}" for name, value in note.items())
        log.info("%s %s %s %s %.3fs %s", visit.id, scope["method"], path, status, seconds, words)


class _Visit:
    """One request: its id for the log, its start time and its status. Adds the headers of every response."""

    def __init__(self, send: Send, granted: dict[str, str]) -> None:
        self._send, self._granted = send, granted
        self.id, self.began, self.status = uuid.uuid4().hex, time.perf_counter(), 0

    async def send(self, message: Message) -> None:
        """Send a message on, with these headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in (HEADERS | self._granted | {"x-request-id": self.id}).items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
        await self._send(message)


FAULT = Refusal(
    500, "Internal server error; see the server's log.", "server_error", code="internal_error", headers=NOT_AGAIN
)


def json_response(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON in plain ASCII, so that a client's invalid Unicode can still be quoted."""
    return Response(json.dumps(document), status, headers, "application/json")


def refused_response(refused: Refusal) -> Response:
    """A refusal as a response."""
    return json_response(refused.document(), refused.status, dict(refused.headers))


def _site(origin: str) -> str | None:
    """Host and port of an origin; None if it is not valid."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _host_name(host: str) -> str:
    """`localhost:8000` -> localhost; `[::1]:8000` -> ::1."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _log_fault(number: str, error: Exception, *, with_words: bool) -> None:
    """Log where it happened, but not the message, which may contain a prompt."""
    place = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s a fault: %s%s\n%s", number, type(error).__name__, f": {error}" if with_words else "", place)
