"""A results file: a first row that says everything a run depends on, then a row an item.

Rows are on disk as soon as their items are graded, so that a crash, a kill or a power cut loses only what was in
flight. A finished file is put in the order of the problems: interrupted or not, a run ends with the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tacg.experiments.rows import Row


@dataclass(frozen=True, slots=True)
class Item:
    """One problem, decoded and graded. `pace` counts the commits of each step; `strict`: see `Grade`."""

    id: str
    correct: bool
    score: float
    steps: int
    forwards: int
    tokens: int
    text: str
    pace: tuple[int, ...]
    strict: bool | None = None

    @property
    def tpf(self) -> float:
        """Tokens per forward."""
        return self.tokens / self.forwards


class Results:
    """The items of one run, by the number of their problem; without a path in memory only.

    header  what the run depends on. A file that was begun with another one is refused.
    resume  go on with a file that is there already
    """

    def __init__(self, path: Path | None, header: Mapping[str, Any], *, resume: bool = False) -> None:
        self.path, self.items = path, dict[int, Item]()
        self.header: Row = json.loads(json.dumps(header, default=str))  # as it will be read back
        self._file: BinaryIO | None = None
        self._turn = threading.Lock()  # items are graded on several threads
        if path is not None:
            self._open(path, resume)

    def _open(self, path: Path, resume: bool) -> None:
        if path.exists() and not resume:
            raise TacgError(f"{path} is there already: go on with it (--resume) or name another file.")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+")
        _lock(self._file, path)
        try:
            header, self.items = _read(self._file, path, mend=True)
            if header is None:
                self._append(self.header)
            else:
                refuse_other_settings(path, header, self.header)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, number: int, item: Item) -> None:
        """Keep an item, on disk at once."""
        with self._turn:
            self.items[number] = item
            self._append({"number": number, **asdict(item)})

    def _append(self, row: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(row).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def finish(self) -> None:
        """All items are there: put the rows in order, in one stroke."""
        if self.path is None or list(self.items) == sorted(self.items):
            return
        rows = [self.header, *({"number": number, **asdict(self.items[number])} for number in sorted(self.items))]
        draft = self.path.with_name(self.path.name + ".part")
        with draft.open("wb") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)


def read_results(path: Path) -> tuple[Row, dict[int, Item]]:
    """Header and items of a results file, finished or not."""
    try:
        with path.open("rb") as file:
            header, items = _read(file, path)
    except OSError as error:
        raise TacgError(f"The results file {str(path)!r} cannot be read: {error}.") from None
    if header is None:
        raise TacgError(f"{path} is no results file of `tacg eval`: it has no header.")
    return header, items


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


def _read(file: BinaryIO, path: Path, *, mend: bool = False) -> tuple[Row | None, dict[int, Item]]:
    """Header and items. What a crash left after the last whole row is not read, and with `mend` cut off."""
    file.seek(0)
    content = file.read()
    whole = content.rfind(b"\n") + 1
    if mend and whole < len(content):
        file.truncate(whole)
    rows = [_parsed(line, path, number) for number, line in enumerate(content[:whole].splitlines(), start=1)]
    if not rows:
        return None, {}
    if "run" not in rows[0]:
        raise TacgError(f"{path} is no results file of `tacg eval`: its first row must say `run`, got {list(rows[0])}.")
    return rows[0], {row["number"]: _item(row, path) for row in rows[1:]}


def _parsed(line: bytes, path: Path, number: int) -> Row:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise TacgError(f"{path}, line {number}: not a JSON row; delete the line, --resume decodes it again.")
    return row


def _item(row: Row, path: Path) -> Item:
    fields = {name: value for name, value in row.items() if name != "number"}
    try:
        return Item(**fields | {"pace": tuple(fields["pace"])})
    except (TypeError, KeyError):
        raise TacgError(f"{path}: row {row.get('number')} has the fields {', '.join(fields)}, not those of an item; "
                        "it is of another version.") from None  # fmt: skip


def _lock(file: BinaryIO, path: Path) -> None:
    """Refuse to write where another process is writing. Gone with the process, however it ends."""
    with contextlib.suppress(ImportError):  # not on Windows
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise TacgError(f"{path} is being written by another process; wait for it, or name another file.") from None
