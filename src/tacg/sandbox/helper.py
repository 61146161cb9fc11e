"""A child process that answers one question at a time over its standard input and output."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError
from tacg.sandbox.wire import receive, send

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence


class Helper:
    """One child. It starts with only its pipes open and in its own session, so that Ctrl-C does not reach it."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None, cwd: str | None = None) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=env, cwd=cwd, start_new_session=True, bufsize=0,
        )  # fmt: skip

    def hear(self, seconds: float) -> Any:
        """The next message; EOFError if the child is gone, TimeoutError if it is silent for this long."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise TimeoutError
        return receive(self.process.stdout.fileno())

    def ask(self, question: Any, seconds: float) -> Any:
        """Send a question and wait for the answer."""
        assert self.process.stdin is not None
        send(self.process.stdin.fileno(), question)
        return self.hear(seconds)

    def close(self) -> None:
        """End the child: closing its input makes it clean up; if it is busy, it is killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Helpers:
    """Idle helpers by kind, as many as there are threads that ask at once. Each is started once."""

    def __init__(self, start: Callable[[Any], Helper]) -> None:
        self.start = start
        self._idle: dict[Hashable, list[Helper]] = {}
        self._lock = threading.Lock()
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._idle.clear)  # a fork cannot share our pipes

    @contextlib.contextmanager
    def borrow(self, kind: Hashable) -> Iterator[Helper]:
        """A helper for one question. If interrupted, it is ended, because its answer would come too late."""
        with self._lock:
            idle = self._idle.setdefault(kind, [])
            helper = idle.pop() if idle else None
        helper = helper or self.start(kind)
        try:
            yield helper
        except BaseException as error:
            helper.close()
            if isinstance(error, EOFError | BrokenPipeError):
                raise TacgError(f"A helper process ended before it answered ({kind}); is memory short?") from error
            raise
        with self._lock:
            self._idle.setdefault(kind, []).append(helper)

    def close(self) -> None:
        """End all idle helpers."""
        with self._lock:
            helpers = [helper for idle in self._idle.values() for helper in idle]
            self._idle.clear()
        for helper in helpers:
            helper.close()
