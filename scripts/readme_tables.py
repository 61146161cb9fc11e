"""Draw the README's "which decoder?" and "does TACG help?", and the choice that the live page offers, from rows.

`make decoder-pages` runs it.
"""

from __future__ import annotations

import json
from pathlib import Path

from tacg.experiments.does_it_help import with_help
from tacg.policies.recommended import FILE, recommendations, with_choice
from tacg.records.flat import read_rows

README, ARENA = Path("README.md"), Path("docs/arena/rows.jsonl")
STUDIES = [Path("docs") / name / "rows.jsonl" for name in ("results", "results-2", "results-3", "arena")]
OFFERED = Path("src/tacg/policies") / FILE

if __name__ == "__main__":
    arena = read_rows(ARENA)
    text = with_choice(README.read_text("utf-8"), arena, "docs/decoders/")
    README.write_text(with_help(text, [row for file in STUDIES for row in read_rows(file)]), "utf-8")
    OFFERED.write_text(json.dumps(recommendations(arena), indent=1) + "\n", "utf-8")
