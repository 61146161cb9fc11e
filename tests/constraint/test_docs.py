"""docs/structured.md: its example prints what it says, and its tables are those of the rows."""

from __future__ import annotations

import contextlib
import io
import re

from tacg.bench.constraint import tables
from tacg.records.flat import read_rows
from tests.cli.test_cli import ROOT

PAGE = (ROOT / "docs/structured.md").read_text(encoding="utf-8")


def test_the_first_example_prints_what_the_page_says() -> None:
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(found[1], {})
    assert printed.getvalue() == found[2]


def test_the_tables_are_drawn_from_the_rows() -> None:
    drawn = "\n".join(table.markdown() for table in tables(read_rows(ROOT / "docs/bench/constraint/rows.jsonl")))
    found = re.search(r"<!-- rows: [^>]*-->\n(.*)<!-- end of rows -->", PAGE, re.DOTALL)
    assert found is not None
    assert found[1] == drawn
