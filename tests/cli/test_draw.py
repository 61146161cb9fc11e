"""Tables in a terminal of 80 columns: no number is cut, in any verb."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tacg.cli import draw as drawing
from tacg.cli.draw import draw
from tacg.cli.main import run
from tests.cli.test_cli import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

CLI = Path(drawing.__file__).parent
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?: \[[-+\d.]+, [-+\d.]+\])?")


def drawn(columns: Sequence[str], lines: Sequence[Sequence[str]], width: int = 80) -> list[str]:
    file = io.StringIO()
    draw(Console(file=file, width=width, highlight=False), columns, lines, title="a table")
    return file.getvalue().splitlines()


NAMES = st.sampled_from(["tacg", "tacg+klass(threshold=0.95, k_extra=4)", "tacg-released-dream-ema+klass", "x" * 40])
NUMBERS = st.one_of(
    st.integers(-(10**12), 10**12).map(str),
    st.tuples(*[st.floats(-1e4, 1e4)] * 3).map(lambda each: "{:+.2f} [{:+.2f}, {:+.2f}]".format(*each)),
)
PROSE = st.just("a longer remark about what was measured, in several words, that may be wrapped")
TABLES = st.integers(1, 14).flatmap(
    lambda width: st.lists(
        st.tuples(NAMES, *[st.one_of(NUMBERS, PROSE) if place == 3 else NUMBERS for place in range(width)]),
        min_size=1,
        max_size=4,
    )
)


@settings(max_examples=40, deadline=None)
@given(TABLES)
def test_no_number_is_cut_whatever_the_table(lines: list[tuple[str, ...]]) -> None:
    columns = ["decoder", *(f"a long name of column {place}" for place in range(len(lines[0]) - 1))]
    shown = drawn(columns, lines)
    assert max(map(len, shown)) <= 80
    for line in lines:
        for cell in line[1:]:
            if NUMBER.fullmatch(cell):
                assert any(re.search(rf"(?<!\S){re.escape(cell)}(?!\S)", each) for each in shown), cell
    for name in {line[0] for line in lines}:
        assert all(any(word in each for each in shown) for word in name.split())


def test_a_table_that_fits_is_one_table() -> None:
    shown = drawn(("policy", "accuracy %"), [("tacg", "91.0 [88, 93]"), ("klass", "9")])
    assert [each.rstrip() for each in shown] == [
        "a table", "policy     accuracy %", "tacg    91.0 [88, 93]", "klass               9",
    ]  # fmt: skip


def test_only_one_file_draws_tables() -> None:
    """So the test above holds for every verb, also for those that are added later."""
    others = [file.name for file in CLI.glob("*.py") if file.name != "draw.py" and "rich.table" in file.read_text()]
    assert not others


SHOWN = [
    ["policies"], ["policies", "tacg"], ["policies", "--presets"], ["models"], ["judges"], ["doctor"], ["tasks"],
    ["reproduce", "table1", "--dry-run"], ["arena", "--redraw", "--out", "{home}/arena"],
    ["compare", "-t", "pocket-sudoku", "-m", "tiny", "--n", "2", "-p", "confidence", "-p", "tacg"],
    ["eval", "-t", "pocket-sudoku", "-m", "tiny", "--n", "2"],
    ["ablate", "-m", "tiny", "--quick", "--out", "{home}/a"],
    *(["table", str(file)] for file in sorted((ROOT / "docs").glob("**/rows.jsonl")) if file.stat().st_size < 10**6),
]  # fmt: skip


@pytest.mark.parametrize("words", SHOWN, ids=lambda words: " ".join(words[:2]).replace(str(ROOT), ""))
def test_every_verb_fits_and_cuts_nothing(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output has the same words whether it is wrapped at 80 columns or not at all."""
    (tmp_path / "arena").mkdir()
    (tmp_path / "arena" / "rows.jsonl").symlink_to(ROOT / "docs" / "arena" / "rows.jsonl")
    seen = {}
    for width in ("80", "5000"):
        monkeypatch.setenv("COLUMNS", width)
        monkeypatch.setattr(sys, "argv", ["tacg", *(word.format(home=tmp_path) for word in words)])
        with pytest.raises(SystemExit) as ended:
            run()
        assert not ended.value.code
        seen[width] = capsys.readouterr().out
    if words[0] != "tasks":  # lines of text, which a terminal wraps itself
        assert max(map(cell_len, seen["80"].splitlines())) <= 80
    timed = words[0] in ("compare", "eval")  # seconds differ from run to run
    numbers = {width: {each for each in text.split() if re.search(r"\d", each)} for width, text in seen.items()}
    assert timed or numbers["5000"] <= numbers["80"], numbers["5000"] - numbers["80"]
    assert "…" not in seen["80"].replace("…", "", seen["5000"].count("…"))
