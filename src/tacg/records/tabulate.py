"""Tables of any rows: results files, experiments and benchmarks. Nothing is decoded.

A results file is one row. Rows with an accuracy are compared with the first row on the same problems; all others are
shown with the columns in which they differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError
from tacg.files import what_is
from tacg.records.flat import Plain, RowTable, flatten, read_rows
from tacg.records.results import read_results
from tacg.records.summary import by_item, paired, summary
from tacg.records.tables import Table, accuracy, change
from tacg.shapes import COUNT, Number, misfit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tacg.records.rows import ResultRow

SHARE, AMOUNT = Number(0, 1), Number(0)
# What tables need of a row with an accuracy.
EVALUATION = {
    "task": str, "model": str, "policy": str, "n": Number(1, whole=True), "seed": COUNT, "accuracy": SHARE,
    "accuracy_ci": (SHARE, SHARE), "steps": AMOUNT, "tpf": AMOUNT, "tpf_ratio": AMOUNT, "correct": str,
    "item_steps": [COUNT],
}  # fmt: skip
HIDDEN = {"key", "weights", "version", "torch", "hardware"}  # columns that say where a row is from
COLUMNS = ("policy", "n", "accuracy %", "steps", "TPF", "total TPF", "Δ accuracy", "p", "Δ steps")


def row_of(path: Path) -> ResultRow:
    """The row of a results file, finished or not: `n` items of the `of` requested, `numbers` says which."""
    header, items = read_results(path)
    if not items:
        raise TacgError(f"{path} has no items yet; continue it with tacg eval --resume.")
    run, ordered = header["run"], tuple(items[number] for number in sorted(items))
    row = summary(ordered, run["task"], header["model"]["model"], run["policy"], run["seed"])
    facts = {"of": run["n"], "split": run["split"], "data": run["data"], "dtype": header["model"]["dtype"]}
    facts |= {"version": header["versions"]["tacg"], "name": path.stem, "numbers": sorted(items)}
    return row | facts | by_item(ordered)


def rows_of(paths: Sequence[Path]) -> RowTable:
    """The rows of files; each is paired with the first one of the same model on the same problems."""
    first: dict[tuple[Any, ...], ResultRow] = {}
    rows = RowTable()
    for path in paths:
        for row in _rows_in(path):
            if not is_evaluation(row):
                rows.append(row)
                continue
            same = row["model"], row.get("weights"), row.get("data"), row["task"], row["n"], row["seed"]
            where = row.get("split"), row.get("skip", 0), tuple(row.pop("numbers", ()))
            rows.append(row | paired(row, first.setdefault((*same, *where), row)))
    return rows


def _rows_in(path: Path) -> list[ResultRow]:
    """The rows of a file, each with a name."""
    found = read_rows(path)
    if found.header:
        return [row_of(path)]
    if not found:
        raise TacgError(f"{path} must contain rows or results; it is empty.")
    if strange := next((row for row in found if not (is_evaluation(row) or "key" in row or "bench" in row)), None):
        raise TacgError(f"{path} must hold rows or results of tacg; it holds {what_is(strange)}.")
    return [{"name": row.get("policy", path.stem), **row} if is_evaluation(row) else row for row in found]


def is_evaluation(row: ResultRow) -> bool:
    """Whether a row is that of a policy on problems, with all that tables show."""
    return not misfit(row, EVALUATION) and len(row["correct"]) == len(row["item_steps"]) == row["n"]


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One table per task and model, then one for each other kind of rows."""
    graded = [row for row in rows if is_evaluation(row)]
    return [*_graded_tables(graded), *_plain_tables([row for row in rows if not is_evaluation(row)])]


def _graded_tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One table per task and model."""
    by_model = []
    for task, model in dict.fromkeys((row["task"], row["model"]) for row in rows):
        lines = [
            (
                _shown(row), _counted(row), accuracy(row),
                f"{row['steps']:.2f}", f"{row['tpf']:.2f}", f"{row['tpf_ratio']:.2f}", change(row, "accuracy", 100),
                f"{row['mcnemar_p']:.2g}" if row.get("base") else "", change(row, "steps"),
            )
            for row in rows if (row["task"], row["model"]) == (task, model)
        ]  # fmt: skip
        by_model.append(Table(f"{task}, {model}", COLUMNS, tuple(lines)))
    return by_model


def _counted(row: ResultRow) -> str:
    return str(row["n"]) if row["n"] == row.get("of", row["n"]) else f"{row['n']} of {row['of']}"


def _shown(row: ResultRow) -> str:
    """The policy with its knobs, and the cache if one was asked for."""
    cache = (row.get("settings") or {}).get("cache", "auto")
    return str(row["policy"]) + (f", cache={cache}" if cache != "auto" else "")


def _plain_tables(rows: Sequence[ResultRow]) -> list[Table]:
    """Rows of the same columns in one table. Columns with one value for all of them are in its title."""
    groups: dict[tuple[Any, ...], list[Plain]] = {}
    for row in rows:
        plain = {name: value for name, value in flatten(row).items() if name not in HIDDEN}
        groups.setdefault((row.get("bench"), *plain), []).append(plain)
    return [_plain_table(lines) for lines in groups.values()]


def _plain_table(lines: Sequence[Plain]) -> Table:
    names = list(lines[0])
    differ = [name for name in names if len({line[name] for line in lines}) > 1] or names
    title = ", ".join(f"{name} {_written(lines[0][name])}" for name in names if name not in differ)
    return Table(title, tuple(differ), tuple(tuple(_written(line[name]) for name in differ) for line in lines))


def _written(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
