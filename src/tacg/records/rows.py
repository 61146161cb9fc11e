"""Rows of results in a JSONL file: appended as they are made, found again when an experiment is started again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from typing import TYPE_CHECKING, Any, BinaryIO

from tacg.errors import TacgError
from tacg.files import make_room, not_written, parse_json, place_of, read_bytes
from tacg.shapes import misfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

ResultRow = dict[str, Any]
PAUSE = 0.2  # seconds: long enough for another process to end its line


def write_rows(path: Path, rows: Iterable[ResultRow]) -> None:
    """Append rows to a JSONL file: other processes may append to it, too."""
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
    """Add a row to a file that is opened without a buffer: all of it, or nothing if the disk is full."""
    line = memoryview(json.dumps(row).encode() + b"\n")
    before = os.fstat(file.fileno()).st_size
    try:
        while line:
            line = line[file.write(line) :]
    except OSError:
        file.truncate(before)  # half a row would spoil the next one
        raise


def lock(file: BinaryIO, *, give_back: bool = False, wait: bool = True) -> None:
    """Keep others from writing until it is given back, or the process ends, however it does."""
    with contextlib.suppress(ImportError):  # not on Windows
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN if give_back else fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def read_rows(path: Path) -> list[ResultRow]:
    """The rows of a JSONL file. A last line that was cut off in the middle is left out."""
    return parse_rows(read_bytes(path, "file of rows"), path)[0]


def parse_rows(content: bytes, path: Path) -> tuple[list[ResultRow], int]:
    """The rows of a JSONL file's content, one for each line, and how many bytes they take.

    A crash may have cut off what follows.
    """
    end = content.rfind(b"\n") + 1
    rows = []
    for number, line in enumerate(content[:end].split(b"\n")[:-1], start=1):
        where = f"{path}, line {number}"
        row = parse_json(line, where, "delete the line, it will be made again")
        if not isinstance(row, dict):
            raise TacgError(f"{where}: must be a JSON object; delete the line, it will be made again.")
        rows.append(row)
    return rows, end


class Ledger:
    """The rows that an experiment has made so far, by the key of what made them. Without a path: in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.rows: dict[str, ResultRow] = {}
        self._lines: dict[str, int] = {}  # where the rows are that were there
        if path is not None:
            make_room(path)
            if path.exists():
                self._read(path)

    def _read(self, path: Path) -> None:
        content = read_bytes(path, "file of rows")
        if not content.endswith(b"\n"):
            time.sleep(PAUSE)  # somebody may be writing it
            content = read_bytes(path, "file of rows")
        rows, end = parse_rows(content, path)
        if content and not rows:
            raise TacgError(f"{path} has no whole row: delete it, or name another file.")
        if end < len(content):
            os.truncate(path, end)  # mend a cut-off line
        for line, row in enumerate(rows, start=1):
            if "key" in row:
                if wrong := misfit(row, {"key": str}):
                    raise _no_row(path, line, wrong)
                self.rows[row["key"]], self._lines[row["key"]] = row, line

    def get(
        self, key: str, shape: Mapping[str, Any], impossible: Callable[[ResultRow], str] = lambda row: ""
    ) -> ResultRow | None:  # fmt: skip
        """The row that was made under this key. Nobody can go on with one of another shape, or an impossible one."""
        row = self.rows.get(key)
        if row is not None and key in self._lines and (wrong := misfit(row, dict(shape)) or impossible(row)):
            assert self.path is not None
            raise _no_row(self.path, self._lines[key], wrong)
        return row

    def add(self, key: str, row: ResultRow) -> ResultRow:
        """Keep a row, on disk at once."""
        kept: ResultRow = json.loads(json.dumps({**row, "key": key}))  # as it will be read back
        self.rows[key] = kept
        if self.path is not None:
            write_rows(self.path, [kept])
        return kept


def _no_row(path: Path, line: int, wrong: str) -> TacgError:
    return TacgError(f"{path}, line {line}: {wrong}; delete the line, it will be made again.")


def key_of(**facts: Any) -> str:
    """A short name for everything that a row depends on."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
