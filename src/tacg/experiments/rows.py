"""Rows of results in a JSONL file: appended as they are made, found again when an experiment is started again."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Row = dict[str, Any]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Append rows to a JSONL file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            file.flush()


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSONL file. A last line that was cut off in the middle is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            if line:
                rows.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines):
                raise TacgError(f"{path}, line {number}: not a JSON row; delete the line or the file.") from None
    return rows


class Ledger:
    """The rows that an experiment has made so far, by the key of what made them. Without a path: in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        rows = read_rows(path) if path is not None and path.exists() else []
        if path is not None and path.exists() and not path.read_bytes().endswith(b"\n"):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")  # mend a cut-off line
        self.rows = {row["key"]: row for row in rows if "key" in row}

    def get(self, key: str) -> Row | None:
        """The row that was made under this key."""
        return self.rows.get(key)

    def add(self, key: str, row: Row) -> Row:
        """Keep a row, on disk at once."""
        kept: Row = json.loads(json.dumps({**row, "key": key}))  # as it will be read back
        self.rows[key] = kept
        if self.path is not None:
            write_rows(self.path, [kept])
        return kept


def key_of(**facts: Any) -> str:
    """A short name for everything that a row depends on."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
