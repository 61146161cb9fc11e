"""A crash-safe file of rows: a header, then rows, each written to disk at once."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any, Self

from tacg.errors import TacgError
from tacg.files import make_room, not_written, read_bytes, what_is, write_file
from tacg.records.rows import append_line, lock, parse_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from tacg.records.rows import ResultRow


class Journal:
    """A JSONL file whose first row is a header with everything the other rows depend on.

    header  if the file was begun with another header, it is refused; the message names what differs
    resume  continue an existing file; a last row that a crash cut off is removed
    rows    the existing rows; the first is on line 2 of the file
    """

    def __init__(self, path: Path, header: Mapping[str, Any], *, resume: bool = False) -> None:
        refuse_unwritable(path, resume=resume)
        self.path = path
        self.header: ResultRow = json.loads(json.dumps(header, default=str))  # as it would be read back
        self._turn = threading.Lock()  # several threads add rows
        self._file = path.open("ab", buffering=0)
        try:
            self._lock()
            content = read_bytes(path, "results file")
            there, self.rows, end = _parse(content, path)
            self._file.truncate(end)
            if there is None:
                self.append(self.header)
            else:
                refuse_other_settings(path, there, self.header)
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        try:
            lock(self._file, wait=False)
        except OSError:
            raise TacgError(
                f"{self.path} is being written by another process; wait for it, or name another file."
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row; it is on disk when this returns."""
        with self._turn:
            try:
                append_line(self._file, row)
                os.fsync(self._file.fileno())
            except OSError as error:
                raise not_written(self.path, error) from None

    def put_in_order(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace all rows by these, atomically; called at the end, when no more rows will follow."""
        write_file(self.path, b"".join(json.dumps(row).encode() + b"\n" for row in (self.header, *rows)))


BEGINNING = b'{"run":'  # the start of every header


def refuse_unwritable(path: Path, *, resume: bool) -> None:
    """Raise unless a journal can be begun here or, with `resume`, continued."""
    make_room(path)
    if path.exists() and not resume:
        raise TacgError(f"{path} exists already: continue it with --resume, or name another file.")


def read_journal(path: Path) -> tuple[ResultRow, list[ResultRow]]:
    """Header and rows of a journal, finished or not."""
    header, rows, _ = _parse(read_bytes(path, "results file"), path)
    if header is None:
        raise TacgError(f"{path} is not a results file: it has no header.")
    return header, rows


def refuse_other_settings(path: Path, there: ResultRow, here: ResultRow) -> None:
    """Raise unless both headers are equal, naming what differs."""
    differs = [
        f"{name[:80]}: {str(before)[:80]} there, {str(now)[:80]} here"
        for name, before, now in _differences(there, here) if before != now
    ][:10]  # fmt: skip
    if differs:
        raise TacgError(
            f"{path} was begun with other settings ({'; '.join(differs)}). Use the same ones or name another file."
        )


def _differences(there: Any, here: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The values of two headers, leaf by leaf."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in dict.fromkeys([*there, *here]):
            full = f"{name}.{key}" if name else str(key)
            yield from _differences(there.get(key), here.get(key), full)
    else:
        yield name, there, here


def _parse(content: bytes, path: Path) -> tuple[ResultRow | None, list[ResultRow], int]:
    """Header, rows and their size in bytes; anything after the last complete row (left by a crash) is ignored."""
    rows, end = parse_rows(content, path)
    if rows and not isinstance(rows[0].get("run"), dict):
        raise TacgError(f"{path} is not a results file of `tacg eval`; it holds {what_is(rows[0])}.")
    if not rows and not content.startswith(BEGINNING) and not BEGINNING.startswith(content):
        raise TacgError(f"{path} is not a results file; name another one.")  # never overwrite such a file
    return (rows[0], rows[1:], end) if rows else (None, [], 0)
