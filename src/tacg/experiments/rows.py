"""Rows of results in a JSONL file: appended as they are made, found again when an experiment is started again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Row = dict[str, Any]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Append rows to a JSONL file, each by one write: other processes may append to it, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        for row in rows:
            file.write((json.dumps(row) + "\n").encode())


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSONL file. A last line that was cut off in the middle is left out."""
    return parse_rows(path.read_bytes(), path)[0]


def parse_rows(content: bytes, path: Path) -> tuple[list[Row], int]:
    """The rows of a JSONL file's content, and how many bytes they take: a crash may have cut off what follows."""
    end = content.rfind(b"\n") + 1
    rows = []
    for number, line in enumerate(content[:end].splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise TacgError(f"{path}, line {number}: not a JSON row; delete the line, it will be made again.")
        rows.append(row)
    return rows, end


class Ledger:
    """The rows that an experiment has made so far, by the key of what made them. Without a path: in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        if path is not None and path.exists():
            content = path.read_bytes()
            if not content.endswith(b"\n"):
                time.sleep(0.2)  # somebody may be writing it
                content = path.read_bytes()
            rows, end = parse_rows(content, path)
            if content and not rows:
                raise TacgError(f"{path} has no whole row: delete it, or name another file.")
            if end < len(content):
                os.truncate(path, end)  # mend a cut-off line
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
