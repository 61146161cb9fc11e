"""Draw the README's table "which decoder?" from the rows of the arena; `make decoder-pages` runs it."""

from __future__ import annotations

from pathlib import Path

from tacg.policies.pages import with_choice
from tacg.records.flat import read_rows

README, ARENA = Path("README.md"), Path("docs/arena/rows.jsonl")

if __name__ == "__main__":
    README.write_text(with_choice(README.read_text("utf-8"), read_rows(ARENA), "docs/decoders/"), "utf-8")
