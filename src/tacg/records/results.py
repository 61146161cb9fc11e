"""A results file: a header row with everything a run depends on, then one row per item.

Rows are written as soon as their items are graded, so a crash, a kill or a power cut loses only items in progress.
A finished file is sorted by problem: an interrupted and resumed run ends with the same bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from tacg.errors import TacgError
from tacg.records.journal import Journal, read_journal
from tacg.shapes import COUNT, Number, brief, misfit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tacg.records.rows import ResultRow

SOME = Number(1, whole=True)
HEADER = {
    "run": {"task": str, "split": str, "seed": COUNT, "n": SOME, "policy": str, "data": str},
    "model": {"model": str, "dtype": str},
    "versions": {"tacg": str},
}
ROW = {
    "number": COUNT, "id": str, "correct": bool, "score": Number(0, 1), "steps": SOME, "forwards": SOME,
    "tokens": COUNT, "text": str, "pace": [COUNT], "strict?": bool, "valid?": bool, "positions?": COUNT,
    "auxiliary?": COUNT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Item:
    """One problem, decoded and graded.

    pace       net commits of each step: positions committed minus positions re-masked
    strict     see `Grade`, also for `valid`
    positions  see `Output`, also for `auxiliary`; 0 in files of versions that did not count them
    """

    id: str
    correct: bool
    score: float
    steps: int
    forwards: int
    tokens: int
    text: str
    pace: tuple[int, ...]
    strict: bool | None = None
    valid: bool | None = None
    positions: int = 0
    auxiliary: int = 0

    @property
    def tpf(self) -> float:
        """Tokens per forward."""
        return self.tokens / self.forwards


class Results:
    """The items of one run by problem number; without a path, in memory only. See `Journal`.

    ids  ids of the run's problems, in order; rows with another id are refused
    """

    def __init__(
        self, path: Path | None, header: Mapping[str, Any], ids: Sequence[str], *, resume: bool = False
    ) -> None:
        self.journal = None if path is None else Journal(path, header, resume=resume)
        try:
            self.items = {} if self.journal is None else _items(self.journal.rows, self.journal.path, len(ids), ids)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.journal is not None:
            self.journal.__exit__()

    def add(self, number: int, item: Item) -> None:
        """Add an item; it is on disk when this returns."""
        self.items[number] = item
        if self.journal is not None:
            self.journal.append(_row(number, item))

    def finish(self) -> None:
        """Called when all items are there: sort the rows by problem."""
        if self.journal is not None:
            self.journal.put_in_order(_row(number, self.items[number]) for number in sorted(self.items))


def read_results(path: Path) -> tuple[ResultRow, dict[int, Item]]:
    """Header and items of a results file, finished or not."""
    header, rows = read_journal(path)
    if wrong := misfit(header, HEADER):
        raise TacgError(f"{path}, line 1: {wrong}; is it a results file of `tacg eval`?")
    return header, _items(rows, path, header["run"]["n"])


def _row(number: int, item: Item) -> ResultRow:
    return {"number": number, **asdict(item)}


def _items(rows: Sequence[ResultRow], path: Path, n: int, ids: Sequence[str] = ()) -> dict[int, Item]:
    """The items of a run with `n` problems, by number; raises at the first invalid row."""
    items: dict[int, Item] = {}
    lines: dict[str, int] = {}  # by id
    for line, row in enumerate(rows, start=2):
        wrong = misfit(row, ROW) or _impossible(row, n) or _of_another(row, items, lines, ids)
        if wrong:
            raise TacgError(f"{path}, line {line}: {wrong}; delete the line and --resume, or name another file.")
        lines[row["id"]] = line
        items[row["number"]] = _item(**row)
    return items


def _impossible(row: ResultRow, n: int) -> str:
    """Describe what is inconsistent in a row, or return an empty text."""
    known = {"number", *Item.__dataclass_fields__}
    if more := sorted(row.keys() - known):
        return f"`{more[0][:80]}` is not a field of this version's rows"
    if row["number"] >= n:
        return f"`number` must be below the {n} problems of the run, got {row['number']}"
    if len(row["pace"]) != row["steps"]:
        return f"`pace` must have an entry for each of the {row['steps']} steps, got {len(row['pace'])}"
    if sum(row["pace"]) < row["tokens"]:
        return f"`tokens` must be at most the {sum(row['pace'])} commits of `pace`, got {row['tokens']}"
    return ""


def _of_another(row: ResultRow, items: Mapping[int, Item], lines: Mapping[str, int], ids: Sequence[str]) -> str:
    """Describe why the row's id does not fit its number or occurs twice, or return an empty text."""
    name, number = row["id"], row["number"]
    if name in lines:
        return f"{brief(name)} is answered a second time, the first is in line {lines[name]}"
    if number in items:
        return f"a second row has the number {number}, the first is in line {lines[items[number].id]}"
    if ids and ids[number] != name:
        return f"problem {number} of this run is {ids[number]!r}, but the row answers {brief(name)}"
    return ""


def _item(number: int, pace: list[int], **fields: Any) -> Item:
    known = {name: value for name, value in fields.items() if value is not None}  # null means missing
    return Item(pace=tuple(pace), **known)
