"""Running the server: a socket, uvicorn around the application, and a graceful shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from tacg.errors import TacgError
from tacg.serve.wire import Wire

if TYPE_CHECKING:
    from types import FrameType

    from tacg.serve.app import Service

log = logging.getLogger("tacg.serve")
OTHER_FILES = 256  # file descriptors other than connections
LAST_WORDS = 5  # seconds to send responses that are already complete


class Server(uvicorn.Server):
    """On the first signal new requests get 503 and running ones `grace` seconds; the second signal ends it at once."""

    def __init__(self, service: Service) -> None:
        limits = service.limits
        allow_files(limits.connections + OTHER_FILES)
        super().__init__(
            uvicorn.Config(
                service.app, log_config=None, access_log=False, lifespan="on", ws="none", server_header=False,
                http=cast("Any", partial(Wire, limits)), limit_concurrency=limits.connections,
                timeout_graceful_shutdown=LAST_WORDS, proxy_headers=False,
            )
        )  # fmt: skip
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Remember the loop, because signals arrive outside of it."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Also shut down if nothing can be decoded any more."""
        if not self._service.batcher.alive:
            self.leave()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a stop signal. It is not raised again afterwards, because a requested shutdown is a success."""
        if not self.started or self._loop is None:
            os._exit(128 + sig)  # no request has been served yet
        if self._leaving is not None:
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self.leave)

    def leave(self) -> None:
        """Begin to shut down; must be called in the loop."""
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._leave())

    async def _leave(self) -> None:
        batcher, loop = self._service.batcher, asyncio.get_running_loop()
        batcher.drain()
        log.info("shutting down: %d rows running, %d waiting", batcher.running, batcher.waiting)
        until = loop.time() + self._service.limits.grace
        while loop.time() < until and batcher.alive and batcher.running + batcher.waiting > 0:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(batcher.stop)
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 means any free port."""
    listening = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # asyncio sends small writes at once (TCP_NODELAY) only if the socket is declared as TCP. create_server's is
        # not, and every response would wait 40 ms for the client to acknowledge its head.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
        return listening
    except (OSError, OverflowError) as error:
        if listening is not None:
            listening.close()
        raise TacgError(f"Cannot listen at {host}, port {port}: {error}; choose another --port or --host.") from None


def allow_files(wanted: int) -> None:
    """Raise this process's limit on open files to the allowed maximum; the default is often only 1024."""
    try:
        import resource
    except ModuleNotFoundError:  # not Unix
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def address(listening: socket.socket) -> str:
    """The URL for a browser."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
