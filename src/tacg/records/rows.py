"""Rows of results in a JSONL file: appended as they are computed, and reused when an experiment is started again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from typing import TYPE_CHECKING, Any, BinaryIO

from tacg.errors import TacgError
from tacg.files import make_room, not_written, parse_json, place_of, read_bytes, what_is
from tacg.shapes import misfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

ResultRow = dict[str, Any]
PAUSE = 0.2  # seconds: long enough for another process to finish its line


def write_rows(path: Path, rows: Iterable[ResultRow]) -> None:
    """Append rows to a JSONL file; other processes may append to it at the same time."""
    real = place_of(path)
    try:
        with real.open("ab", buffering=0) as file:
            for row in rows:
                lock(file)
                append_line(file, row)
                lock(file, give_back=True)
    except OSError as error:
        raise not_written(path, error) from None


def append_line(file: BinaryIO, row: Any) -> None:
    """Append a row to an unbuffered file: completely, or not at all if the disk is full."""
    line = memoryview(json.dumps(row).encode() + b"\n")
    before = os.fstat(file.fileno()).st_size
    try:
        while line:
            line = line[file.write(line) :]
    except OSError:
        file.truncate(before)  # half a row would damage the next one
        raise


def lock(file: BinaryIO, *, give_back: bool = False, wait: bool = True) -> None:
    """Lock the file against other writers until it is unlocked or the process ends."""
    with contextlib.suppress(ImportError):  # not on Windows
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN if give_back else fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def parse_rows(content: bytes, path: Path) -> tuple[list[ResultRow], int]:
    """The rows of a JSONL file's content, one per line, and their size in bytes.

    Anything after that is an incomplete line.
    """
    end = content.rfind(b"\n") + 1
    rows = []
    for number, line in enumerate(content[:end].split(b"\n")[:-1], start=1):
        where = f"{path}, line {number}"
        row = parse_json(line, where, "delete the line, and it will be computed again")
        if not isinstance(row, dict):
            raise TacgError(f"{where}: must be a JSON object; delete the line, and it will be computed again.")
        rows.append(row)
    return rows, end


class Ledger:
    """The rows of an experiment so far, by a key of their inputs. Without a path: in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.rows: dict[str, ResultRow] = {}
        self._lines: dict[str, int] = {}  # line numbers of rows read from the file
        if path is not None:
            make_room(path)
            if path.exists():
                self._read(path)

    def _read(self, path: Path) -> None:
        content = read_bytes(path, "file of rows")
        if not content.endswith(b"\n"):
            time.sleep(PAUSE)  # another process may be writing it
            content = read_bytes(path, "file of rows")
        rows, end = parse_rows(content, path)
        if rows and isinstance(rows[0].get("run"), dict):
            raise TacgError(f"{path} must hold rows of an experiment; it is {what_is(rows[0])}. Name another --out.")
        if content and not rows:
            raise TacgError(f"{path} has no whole row: delete it, or name another file.")
        if end < len(content):
            os.truncate(path, end)  # remove an incomplete line
        for line, row in enumerate(rows, start=1):
            if "key" in row:
                if wrong := misfit(row, {"key": str}):
                    raise _no_row(path, line, wrong)
                self.rows[row["key"]], self._lines[row["key"]] = row, line

    def get(
        self, key: str, shape: Mapping[str, Any], impossible: Callable[[ResultRow], str] = lambda row: ""
    ) -> ResultRow | None:  # fmt: skip
        """The row stored under this key. A row that has another shape or is impossible raises an error."""
        row = self.rows.get(key)
        if row is not None and key in self._lines and (wrong := misfit(row, dict(shape)) or impossible(row)):
            assert self.path is not None
            raise _no_row(self.path, self._lines[key], wrong)
        return row

    def add(self, key: str, row: ResultRow) -> ResultRow:
        """Store a row; it is on disk when this returns."""
        kept: ResultRow = json.loads(json.dumps({**row, "key": key}))  # as it would be read back
        self.rows[key] = kept
        if self.path is not None:
            write_rows(self.path, [kept])
        return kept


def _no_row(path: Path, line: int, wrong: str) -> TacgError:
    return TacgError(f"{path}, line {line}: {wrong}; delete the line, and it will be computed again.")


def key_of(**facts: Any) -> str:
    """A short hash of everything that a row depends on."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
