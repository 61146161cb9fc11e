"""Draw the README's table "which decoder?", and the choice that the live page offers, from the rows of the arena.

`make decoder-pages` runs it.
"""

from __future__ import annotations

import json
from pathlib import Path

from tacg.policies.recommended import FILE, recommendations, with_choice
from tacg.records.flat import read_rows

README, ARENA = Path("README.md"), Path("docs/arena/rows.jsonl")
OFFERED = Path("src/tacg/policies") / FILE

if __name__ == "__main__":
    arena = read_rows(ARENA)
    README.write_text(with_choice(README.read_text("utf-8"), arena, "docs/decoders/"), "utf-8")
    OFFERED.write_text(json.dumps(recommendations(arena), indent=1) + "\n", "utf-8")
