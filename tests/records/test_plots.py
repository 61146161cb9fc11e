"""Plots fit a paper's column and any page: three files, no background, a style per name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tacg import TacgError
from tacg.policies import get_policy
from tacg.records.plot_style import COLOURS, COLUMN, MARKERS, SYMBOLS, styles, symbol
from tacg.records.plots import draw_frontier, draw_heat

ROW = {"task": "t", "model": "m", "n": 10, "seed": 0, "spec": "tacg", "accuracy": 0.5, "accuracy_ci": [0.3, 0.7]}


def test_every_plot_is_a_png_a_pdf_and_an_svg(tmp_path: Path) -> None:
    from matplotlib import image

    rows = [{**ROW, "x": x, "x_name": "threshold", "tpf": 10 * x} for x in (0.5, 0.9)]
    picture = draw_frontier(rows, tmp_path / "a.png")
    assert {file.name for file in tmp_path.iterdir()} == {"a.png", "a.pdf", "a.svg"}
    pixels = image.imread(picture)
    assert pixels[0, 0, 3] == 0, "no slab on dark pages"
    assert pixels.shape[1] == round(220 * COLUMN)
    text = picture.with_suffix(".svg").read_text(encoding="utf-8")
    assert re.search("<!-- 0.9 -->", text), "the threshold is written at its point"
    with pytest.raises(TacgError, match="must end in one of"):
        draw_frontier(rows, tmp_path / "a.txt")


def test_maps_have_colour_bars_and_the_papers_symbols(tmp_path: Path) -> None:
    rows = [
        {**ROW, "x": x, "y": y, "x_name": "support_lambda", "y_name": "tau_floor", "tpf": x + y}
        for x in (0.1, 0.2)
        for y in (0.7, 0.8)
    ]
    text = draw_heat(rows, tmp_path / "a.svg").read_text(encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir()] == ["a.svg"], "only what was asked for"
    assert text.count("<image") >= 4, "two maps and their bars"
    assert symbol("m_base+m_extra") == "$m_{base} = m_{extra}$ (m_base, m_extra)"
    assert symbol("cache") == "cache"
    known = get_policy("tacg+klass").knobs() | get_policy("eb").knobs()
    assert SYMBOLS.keys() <= known.keys(), "knobs have not been renamed"


def test_no_two_names_look_alike() -> None:
    names = [f"policy {number}" for number in range(40)] + ["tacg", "confidence"]
    made = styles(names)
    assert len({tuple(look.values()) for look in made.values()}) == len(names)
    assert made["tacg"] == styles(["tacg"])["tacg"] == {"color": COLOURS[1], "marker": MARKERS[1]}
