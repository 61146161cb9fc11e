"""A results file: a first row that says everything a run depends on, then a row an item.

Rows are on disk as soon as their items are graded, so that a crash, a kill or a power cut loses only what was in
flight. A finished file is put in the order of the problems: interrupted or not, a run ends with the same bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from tacg.errors import TacgError
from tacg.experiments.journal import Journal, read_journal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
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
    """The items of one run, by the number of their problem; without a path in memory only. See `Journal`."""

    def __init__(self, path: Path | None, header: Mapping[str, Any], *, resume: bool = False) -> None:
        self.journal = None if path is None else Journal(path, header, resume=resume)
        self.items = {} if self.journal is None else _items(self.journal.rows, self.journal.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.journal is not None:
            self.journal.__exit__()

    def add(self, number: int, item: Item) -> None:
        """Keep an item, on disk at once."""
        self.items[number] = item
        if self.journal is not None:
            self.journal.append(_row(number, item))

    def finish(self) -> None:
        """All items are there: put the rows in the order of the problems."""
        if self.journal is not None:
            self.journal.put_in_order(_row(number, self.items[number]) for number in sorted(self.items))


def read_results(path: Path) -> tuple[Row, dict[int, Item]]:
    """Header and items of a results file, finished or not."""
    header, rows = read_journal(path)
    return header, _items(rows, path)


def _row(number: int, item: Item) -> Row:
    return {"number": number, **asdict(item)}


def _items(rows: Iterable[Row], path: Path) -> dict[int, Item]:
    try:
        return {row["number"]: _item(**row) for row in rows}
    except (TypeError, KeyError) as error:
        raise TacgError(f"{path} has rows that are no items of this version ({error}); name another file.") from None


def _item(number: int, pace: list[int], **fields: Any) -> Item:
    return Item(pace=tuple(pace), **fields)
