"""A file that grows row by row and survives whatever happens: a header, then rows, each on disk at once."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from tacg.errors import TacgError
from tacg.experiments.rows import parse_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from tacg.experiments.rows import Row


class Journal:
    """A JSONL file whose first row says what the others depend on.

    header  a file that was begun with another one is refused, and told what differs
    resume  go on with a file that is there already; a last row that a crash cut off is removed
    rows    those that were there
    """

    def __init__(self, path: Path, header: Mapping[str, Any], *, resume: bool = False) -> None:
        if path.exists() and not resume:
            raise TacgError(f"{path} is there already: go on with it (--resume) or name another file.")
        self.path = path
        self.header: Row = json.loads(json.dumps(header, default=str))  # as it will be read back
        self._turn = threading.Lock()  # rows come from several threads
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+")
        try:
            _lock(self._file, path)
            there, self.rows = _read(self._file, path, mend=True)
            if there is None:
                self.append(self.header)
            else:
                refuse_other_settings(path, there, self.header)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row, on disk at once."""
        with self._turn:
            self._file.write(json.dumps(row).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def put_in_order(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace all rows by these, in one stroke; for the end, when nothing more will come."""
        draft = self.path.with_name(self.path.name + ".part")
        with draft.open("wb") as file:
            for row in (self.header, *rows):
                file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)


BEGINNING = b'{"run":'  # of every header


def read_journal(path: Path) -> tuple[Row, list[Row]]:
    """Header and rows of a journal, finished or not."""
    try:
        with path.open("rb") as file:
            header, rows = _read(file, path)
    except OSError as error:
        raise TacgError(f"The results file {str(path)!r} cannot be read: {error}.") from None
    if header is None:
        raise TacgError(f"{path} is no results file: it has no header.")
    return header, rows


def refuse_other_settings(path: Path, there: Row, here: Row) -> None:
    """Raise unless both headers say the same, naming what differs."""
    differs = [
        f"{name}: {before} there, {now} here" for name, before, now in _differences(there, here) if before != now
    ]
    if differs:
        raise TacgError(
            f"{path} was begun with other settings ({'; '.join(differs)}). Use the same ones or name another file."
        )


def _differences(there: Any, here: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """What two headers say, leaf by leaf."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in dict.fromkeys([*there, *here]):
            full = f"{name}.{key}" if name else str(key)
            yield from _differences(there.get(key), here.get(key), full)
    else:
        yield name, there, here


def _read(file: BinaryIO, path: Path, *, mend: bool = False) -> tuple[Row | None, list[Row]]:
    """Header and rows. What a crash left after the last whole row is not read, and with `mend` cut off."""
    file.seek(0)
    content = file.read()
    rows, end = parse_rows(content, path)
    if rows and "run" not in rows[0]:
        raise TacgError(f"{path} is no results file: its first row must say `run`, got {', '.join(rows[0])}.")
    if not rows and not content.startswith(BEGINNING) and not BEGINNING.startswith(content):
        raise TacgError(f"{path} is no results file; name another one.")  # least of all one to be mended
    if mend:
        file.truncate(end)
    if not rows:
        return None, []
    return rows[0], rows[1:]


def _lock(file: BinaryIO, path: Path) -> None:
    """Refuse to write where another process is writing. Gone with the process, however it ends."""
    with contextlib.suppress(ImportError):  # not on Windows
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TacgError(f"{path} is being written by another process; wait for it, or name another file.") from None
