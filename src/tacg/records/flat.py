"""Rows as plain columns, for spreadsheets and data frames: an estimate and its interval are three columns."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError
from tacg.files import read_bytes
from tacg.records.results import read_results
from tacg.records.rows import ResultRow, parse_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Plain = dict[str, str | int | float | bool | None]


class RowTable(list[ResultRow]):
    """The rows of a file: a list of dicts that can be converted to a table.

    header  of a results file: what its items depend on; empty for other files
    """

    def __init__(self, rows: Iterable[ResultRow] = (), header: Mapping[str, Any] | None = None) -> None:
        super().__init__(rows)
        self.header = dict(header or {})

    def flat(self) -> list[Plain]:
        """Every row with plain values only, see `flatten`."""
        return [flatten(row) for row in self]

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with one line per row. Needs pandas."""
        try:
            import pandas
        except ImportError:
            raise TacgError("`to_pandas` needs pandas: pip install pandas.") from None
        return pandas.DataFrame(self.flat())

    def to_csv(self) -> str:
        """Comma-separated values with a header; numbers are not rounded."""
        lines, file = self.flat(), io.StringIO()
        writer = csv.DictWriter(file, list(dict.fromkeys(name for line in lines for name in line)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return file.getvalue()


def read_rows(path: str | Path) -> RowTable:
    """The rows that any command wrote: of an experiment or benchmark, or the items of a results file.

    `tacg.read_rows("runs/compare/rows.jsonl").to_pandas()` makes a data frame of them.
    """
    path = Path(path)
    rows, _ = parse_rows(read_bytes(path, "file of rows"), path)
    if rows and isinstance(rows[0].get("run"), dict):
        header, _ = read_results(path)  # checks every item
        return RowTable(rows[1:], header)
    return RowTable(rows)


def flatten(row: Mapping[str, Any]) -> Plain:
    """A row with plain values only.

    x_ci = [low, high]   two columns, x_low and x_high, after x
    x = [low, mid, high] three columns, x (the middle one), x_low and x_high
    x = {name: value}    a column x.name for each value
    Other lists, which hold a value for every problem or step, are left out.
    """
    found: Plain = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": each for inner, each in flatten(value).items()}
        elif isinstance(value, list | tuple):
            found |= _interval(name, list(value))
        elif name != "correct" or isinstance(value, bool):  # otherwise one value per problem
            found[name] = value
    return found


def _interval(name: str, values: list[Any]) -> Plain:
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in values):
        return {}
    if name.endswith("_ci") and len(values) == 2:
        return dict(zip((f"{name[:-3]}_low", f"{name[:-3]}_high"), values, strict=True))
    if len(values) == 3 and values == sorted(values) and not name.startswith("item_"):
        return dict(zip((f"{name}_low", name, f"{name}_high"), values, strict=True))
    return {}
