"""Traces as a page that plays them. Large ones are parsed in a separate process: JSON parsing and writing holds the
interpreter lock and would delay all other clients meanwhile.

As a program: a body on stdin, the page or an error document on stdout; the exit code says which.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

from tacg.errors import TacgError
from tacg.serve.body import Body, parse_json
from tacg.serve.refusal import Refusal, bad
from tacg.trace.format import trace_of
from tacg.trace.player import player_page

SMALL = 1 << 17  # bytes up to which bodies are parsed here in a few ms; a process takes a second or two
REFUSED = 3  # exit code of the process for a client's error
WANTS = "a list of one or two traces, each a list of lines as /v1/decode sends them"


class Replayer:
    """Makes pages; large ones one at a time."""

    command = (sys.executable, "-m", "tacg.serve.replay")

    def __init__(self, seconds: float) -> None:
        self._seconds, self._turn = seconds, asyncio.Semaphore()

    async def page(self, body: bytes | bytearray) -> bytes:
        """The page for a request's body."""
        if len(body) <= SMALL:
            return await asyncio.to_thread(page_of, body)
        async with self._turn:
            return await self._elsewhere(body)

    async def _elsewhere(self, body: bytes | bytearray) -> bytes:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(*self.command, stdin=pipe, stdout=pipe)
        try:
            async with asyncio.timeout(self._seconds):
                page, _ = await child.communicate(body)
        except TimeoutError:
            told = f"The traces could not be made into a page within {self._seconds:g} s; send shorter ones."
            raise Refusal(504, told, "server_error", code="deadline_exceeded") from None
        finally:  # also when the client disconnects
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        if child.returncode == REFUSED:
            raise bad(**json.loads(page))
        if child.returncode:
            raise RuntimeError(f"the process that makes pages ended with {child.returncode}")
        return page


def page_of(content: bytes | bytearray) -> bytes:
    """The page for a body; raises a refusal."""
    try:
        body = Body(parse_json(content))
        given = body.take("traces", WANTS, _right)
        body.settings((), ("traces",))
        if given is None:
            raise bad(f"`traces` must be {WANTS}; it is missing.", "traces")
        return player_page([trace_of(lines) for lines in given]).encode("utf-8", "replace")
    except TacgError as error:
        raise bad(str(error), "traces") from None
    except RecursionError:
        raise bad("`traces` are nested too deeply.", "traces") from None


def _right(value: Any) -> bool:
    return isinstance(value, list) and 1 <= len(value) <= 2 and all(isinstance(each, list) for each in value)


def main() -> int:
    """Read stdin and write stdout."""
    try:
        page = page_of(sys.stdin.buffer.read())
    except Refusal as refused:
        sys.stdout.write(json.dumps({"message": refused.message, "param": refused.param, "code": refused.code}))
        return REFUSED
    sys.stdout.buffer.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
