"""Write what README, docs and the live page say about decoders, drawn from rows: which one to use, does TACG help?

`make decoder-pages` runs it.
"""

from __future__ import annotations

import json
from pathlib import Path

from tacg.experiments.arena import standings
from tacg.experiments.arena_cells import with_cells
from tacg.experiments.does_it_help import gains, with_answer, with_runs
from tacg.experiments.law import cells_of
from tacg.experiments.law_report import with_brief
from tacg.policies.recommended import FILE, recommendations, with_choice
from tacg.records.flat import read_rows

README, HELP, JUDGES = Path("README.md"), Path("docs/does-it-help.md"), Path("docs/judges.md")
ARENA, LAW = Path("docs/arena/rows.jsonl"), Path("docs/results/rows.jsonl")
JUDGED = ("judges/rxnmapper", "judges/rxnfp", "judges/antiberty")
ARENAS = sorted(Path("docs").glob("arena*/rows.jsonl")) + sorted(Path("docs/judges").glob("*/rows.jsonl"))
STUDIES = [
    Path("docs") / name / "rows.jsonl"
    for name in ("archive/results-1", "archive/results-2", "archive/results-3", "arena", *JUDGED)
]
OFFERED = Path("src/tacg/policies") / FILE

if __name__ == "__main__":
    arena = read_rows(ARENA)
    points = gains(row for file in STUDIES for row in read_rows(file))
    readme = with_choice(README.read_text("utf-8"), arena, "docs/decoders/")
    readme = with_brief(readme, cells_of(read_rows(LAW))[0])
    README.write_text(with_answer(readme, points), "utf-8")
    every = [row for file in ARENAS for row in standings(read_rows(file))]
    JUDGES.write_text(with_cells(JUDGES.read_text("utf-8"), every), "utf-8")
    HELP.write_text(with_runs(HELP.read_text("utf-8"), points), "utf-8")
    OFFERED.write_text(json.dumps(recommendations(arena), indent=1) + "\n", "utf-8")
