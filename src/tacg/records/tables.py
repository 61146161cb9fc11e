"""Tables made from rows: printed in the terminal, written as Markdown, or shown on a page with plots."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacg.files import write_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tacg.records.rows import ResultRow

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .9rem .2rem 0; text-align: right; border-bottom: 1px solid #eee }
th:first-child, td:first-child { text-align: left }
th { color: #777; font-weight: 500 }
img { max-width: 100% }
.note { color: #777 }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #ddd } th, td { border-color: #333 }
}
</style>
<h1>{{ title }}</h1>
{% for section in sections %}{% if section.title %}<h2>{{ section.title }}</h2>{% endif %}
{% for part in section.text.split("\n\n") if part %}{% if part.startswith("- ") %}<ul>
{% for line in part.split("\n") %}<li>{{ line[2:] }}</li>{% endfor %}</ul>{% else %}<p>{{ part }}</p>{% endif %}
{% endfor %}
{% for table in section.tables %}{% if table.title %}<h3>{{ table.title }}</h3>{% endif %}
<table><tr>{% for column in table.columns %}<th>{{ column }}</th>{% endfor %}</tr>
{% for line in table.lines %}<tr>{% for value in line %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endfor %}
{% for picture in section.pictures %}
<p><img alt="{{ picture.stem }}" src="data:image/png;base64,{{ picture | embed }}"></p>{% endfor %}
<p class="note">{{ section.note }}</p>
{% endfor %}</html>
"""


@dataclass(frozen=True)
class Table:
    """A title, column names, and lines of text."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table as Markdown, under its title."""
        rule = ["---", *["---:"] * (len(self.columns) - 1)]
        body = "\n".join(f"| {' | '.join(line)} |" for line in (self.columns, rule, *self.lines))
        return f"**{self.title}**\n\n{body}\n" if self.title else f"{body}\n"

    def latex(self) -> str:
        """The table as LaTeX with booktabs rules."""
        lines = [" & ".join(_tex(word) for word in line) + r" \\" for line in (self.columns, *self.lines)]
        columns = "l" + "r" * (len(self.columns) - 1)
        rows = [lines[0], r"\midrule", *lines[1:]]
        body = "\n".join([rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *rows, r"\bottomrule", r"\end{tabular}"])
        return f"\\begin{{table}}\n\\caption{{{_tex(self.title)}}}\n\\centering\n{body}\n\\end{{table}}\n"


# Characters that TeX reads as commands or does not have; the backslash comes first.
TEX = {"\\": r"\textbackslash ", "Δ": r"$\Delta$", "…": r"\ldots ", "±": r"$\pm$", "·": r"$\cdot$"}
TEX |= {"~": r"\textasciitilde ", "^": r"\textasciicircum "} | {each: f"\\{each}" for each in "&%$#_{}"}


def _tex(text: str) -> str:
    return "".join(TEX.get(letter, letter) for letter in text)


@dataclass(frozen=True)
class Section:
    """A part of a page or report: heading, text (paragraphs and lists of "- "), tables, pictures, provenance."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Path] = ()
    note: str = ""

    def markdown(self, page: Path) -> str:
        """The section as Markdown; pictures are linked by their path from the page."""
        pictures = [f"![{each.stem}]({os.path.relpath(each, page.parent)})\n" for each in self.pictures]
        parts = [f"## {self.title}\n", f"{self.text}\n", *(table.markdown() for table in self.tables), *pictures]
        return "\n".join([*parts, f"*{self.note}*\n"])


def write_page(path: Path, title: str, sections: Sequence[Section]) -> Path:
    """Write one HTML file with everything embedded; it needs no network."""
    from jinja2 import Environment

    environment = Environment(autoescape=True)
    environment.filters["embed"] = lambda picture: base64.b64encode(picture.read_bytes()).decode()
    text = environment.from_string(PAGE).render(title=title, sections=sections)
    return write_file(path, text)


def interval(low: float, high: float, form: str) -> str:
    """An interval as all tables print it: `[a, b]`."""
    return f"[{low:{form}}, {high:{form}}]"


def estimate(value: float, low: float, high: float, form: str = "+.1f") -> str:
    """A number and its interval, in the same format."""
    return f"{value:{form}} {interval(low, high, form)}"


def accuracy(row: ResultRow) -> str:
    """Accuracy in percent, with its 95 % interval."""
    low, high = row["accuracy_ci"]
    return f"{100 * row['accuracy']:.1f} {interval(100 * low, 100 * high, '.0f')}"


def change(row: ResultRow, name: str, scale: float = 1.0) -> str:
    """A paired difference with its 95 % interval; empty if the row was not paired."""
    if row.get("base") is None:
        return ""
    low, high = (scale * edge for edge in row[f"{name}_diff_ci"])
    return estimate(scale * row[f"{name}_diff"], low, high)


def gain(row: ResultRow, name: str) -> str:
    """`saved` (steps) or `gained` (accuracy) over a frontier in percent, with its 95 % interval; empty if unknown."""
    if name not in row:
        return ""
    low, high = (100 * edge for edge in row[f"{name}_ci"])
    return estimate(100 * row[name], low, high)


def provenance(rows: Sequence[ResultRow]) -> str:
    """How the numbers were measured, in one line: values that differ are listed, missing ones are left out."""
    said = []
    for name, phrase in (
        ("model", "{}"), ("n", "n = {} per task"), ("seed", "seed {}"), ("split", "{} split"), ("dtype", "{}"),
        ("hardware", "{}"), ("version", "tacg {}"),
    ):  # fmt: skip
        values = sorted({row[name] for row in rows if name in row})
        if values:
            said.append(phrase.format(", ".join(map(str, values))))
    if any("accuracy" in row for row in rows):
        said.append("brackets: 95 % intervals, Δ paired by problem")
    return " · ".join(said)
