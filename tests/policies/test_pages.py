"""Decoder pages: one for each decoder, generated from one source, and up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacg import TacgError
from tacg.policies.pages import HEADINGS, about, page, pages
from tacg.policies.recommended import choice, recommendations, recommended, with_choice
from tacg.policies.registry import BUILT_IN
from tacg.records.flat import read_rows

HOME = Path(__file__).parents[2]
HINT = "run `make decoder-pages`"


def rows(*parts: str) -> list[dict[str, object]]:
    path = HOME.joinpath("docs", *parts, "rows.jsonl")
    return read_rows(path) if path.exists() else []


def test_pages_are_up_to_date() -> None:
    expected = pages(rows("bench", "agreement"), rows("arena"))
    folder = HOME / "docs" / "decoders"
    assert {path.name for path in folder.iterdir()} == expected.keys(), HINT
    stale = [name for name, text in expected.items() if (folder / name).read_text(encoding="utf-8") != text]
    assert not stale, HINT
    readme = (HOME / "README.md").read_text(encoding="utf-8")
    assert readme == with_choice(readme, rows("arena"), "docs/decoders/"), HINT
    assert recommended() == recommendations(rows("arena")), HINT


def test_the_choice_weighs_forwards_against_accuracy() -> None:
    row = {"task": "t", "n": 500, "accuracy_ci": [0.8, 0.95], "auxiliary_forwards": 0}
    settings = [("careful", 0.90, 96.0), ("good(bound=0.1)", 0.885, 20.0), ("fast", 0.81, 5.0), ("hasty", 0.5, 2.0)]
    rows = [{**row, "policy": name, "accuracy": right, "forwards": 500 * calls} for name, right, calls in settings]
    few = {**row, "policy": "lucky", "accuracy": 1.0, "forwards": 8, "n": 8}
    text = choice([*rows, few, {**rows[0], "n": 100, "accuracy": 0.1}], "d/")  # fewer problems hide nothing
    lines = [line.split(" | ")[1:3] for line in text.splitlines() if line.startswith("| t |")]
    assert [goal for goal, _ in lines] == ["most accurate", "fastest within 2 points of that", lines[2][0]]
    assert [name.partition("`]")[0] for _, name in lines] == ["[`careful", "[`good(bound=0.1)", "[`fast"]
    assert "[`good(bound=0.1)`](d/good.md) | 88.5 [80.0, 95.0] | 20.0 |" in text
    assert "lucky" not in text
    assert "| t | most accurate and fastest within 2 points of that |" in choice(rows[1:3], "d/"), "said once"


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_written_beside_a_policy_says_something(name: str) -> None:
    words = about(name)
    assert words.commits
    assert words.origin
    assert all(words.sections[heading] for heading in HEADINGS)
    assert words.sections["Rule"].count("$") % 2 == 0, "mathematics that opens must close"


def test_a_page_tells_knobs_needs_and_figures() -> None:
    row = {"policy": "saber(n=4)", "task": "pocket-math", "n": 500, "accuracy": 0.912, "steps": 14.26, "tpf": 2.5}
    other = {**row, "policy": "tacg+saber"}
    text = page("saber", arena=[row, other])
    for words in ("| `n` |", "It revises", "91.2 %", "14.3", "2.50"):
        assert words in text
    assert "tacg+saber" not in text, "that is a row of TACG"
    skipped = {"policy": "saber", "series": "pocket", "decoder": "Saber", "n": 0, "skipped": "no checkout"}
    assert "no checkout" in page("saber", [skipped])


def test_a_policy_without_a_page_is_refused() -> None:
    with pytest.raises(TacgError, match=r"about/nobody\.md"):
        about("nobody")
    with pytest.raises(TacgError, match="which decoder"):
        with_choice("no marks here", [], "")
