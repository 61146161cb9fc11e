"""Lines from a terminal or a pipe; at a terminal with editing, history and completion."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

KEPT = 1000  # lines of history


def typed_lines(mark: str, complete: Callable[[str], Iterable[str]], interrupted: Callable[[], None]) -> Iterator[str]:
    """Lines until the input ends. A line that ends in a backslash continues on the next one.

    mark         shown where a person types
    complete     the words that may come next, given the line so far
    interrupted  called on Ctrl-C while waiting; what was typed is dropped
    """
    person = sys.stdin.isatty() and sys.stdout.isatty()
    with _history(complete) if person else contextlib.nullcontext():
        while True:
            try:
                yield _one(mark if person else None)
            except KeyboardInterrupt:
                interrupted()
            except EOFError:
                return


def _one(mark: str | None) -> str:
    line = _read(mark)
    while line.endswith("\\"):
        line = line[:-1] + "\n" + _read("… " if mark is not None else None)
    return line


def _read(mark: str | None) -> str:
    if mark is not None:
        return input(mark)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\r\n")


@contextlib.contextmanager
def _history(complete: Callable[[str], Iterable[str]]) -> Iterator[None]:
    """Editing with arrow keys, history of earlier chats, and completion by Tab; does nothing without readline."""
    try:
        import readline
    except ImportError:
        yield
        return

    def match(word: str, number: int) -> str | None:
        before = readline.get_line_buffer()[: readline.get_begidx()]
        found = [each for each in complete(before) if each.startswith(word)]
        return found[number] if number < len(found) else None

    readline.set_completer(match)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(KEPT)
    file = _history_file()
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a chat works without a history file, too
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)
            file.chmod(0o600)


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "tacg" / "chat_history"
