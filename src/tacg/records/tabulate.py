"""Tables of results files: one row per file, with the change from the first file on the same problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError
from tacg.records.results import read_results
from tacg.records.summary import by_item, paired, summary
from tacg.records.tables import Table, accuracy, change

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tacg.records.rows import ResultRow

COLUMNS = ("policy", "n", "accuracy %", "steps", "TPF", "total TPF", "Δ accuracy", "p", "Δ steps")


def row_of(path: Path) -> ResultRow:
    """The row of a results file, finished or not: `n` items of the `of` requested, `numbers` says which."""
    header, items = read_results(path)
    if not items:
        raise TacgError(f"{path} has no items yet; go on with it (tacg eval --resume).")
    run, ordered = header["run"], tuple(items[number] for number in sorted(items))
    row = summary(ordered, run["task"], header["model"]["model"], run["policy"], run["seed"])
    facts = {"of": run["n"], "split": run["split"], "data": run["data"], "dtype": header["model"]["dtype"]}
    facts |= {"version": header["versions"]["tacg"], "name": path.stem, "numbers": sorted(items)}
    return row | facts | by_item(ordered)


def rows_of(paths: Sequence[Path]) -> list[ResultRow]:
    """One row per file; each is paired with the first one of the same model on the same problems."""
    first: dict[tuple[Any, ...], ResultRow] = {}
    rows = []
    for path in paths:
        row = row_of(path)
        base = first.setdefault((row["model"], row["data"], tuple(row.pop("numbers"))), row)
        rows.append(row | paired(row, base))
    return rows


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One table per task and model."""
    by_model = []
    for task, model in dict.fromkeys((row["task"], row["model"]) for row in rows):
        lines = [
            (
                row["policy"], str(row["n"]) if row["n"] == row["of"] else f"{row['n']} of {row['of']}", accuracy(row),
                f"{row['steps']:.2f}", f"{row['tpf']:.2f}", f"{row['tpf_ratio']:.2f}", change(row, "accuracy", 100),
                f"{row['mcnemar_p']:.2g}" if row.get("base") else "", change(row, "steps"),
            )
            for row in rows if (row["task"], row["model"]) == (task, model)
        ]  # fmt: skip
        by_model.append(Table(f"{task}, {model}", COLUMNS, tuple(lines)))
    return by_model
