"""The arena in words, tables and a page that sorts and filters. Nothing is measured here: all figures are from rows."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from tacg.experiments.arena import CAREFUL, GATE, against_default, best_points
from tacg.files import write_file
from tacg.policies.base import DEFAULT_BASE
from tacg.records.tables import Section, Table, accuracy, change, estimate, gain, provenance

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tacg.records.rows import ResultRow

GIVE = 0.02  # accuracy that may be given up for speed: below the best of all decoders, as a fraction
WORDS = f"""Every registered decoder, each over its main knob, and `{GATE}` over each, on the same problems. `{GATE}`
alone is over `{DEFAULT_BASE}`. Drawn from rows by `tacg arena`; nothing is typed by hand. Forwards, positions and
auxiliary forwards are means per problem. A branch that looks ahead counts as a forward of its own. Positions are all
that the model computed. Auxiliary forwards are those of a second, smaller model (`apd`), whose positions are not
counted. Tokens per second are per second of processor time on one core; empty where only wall time was measured."""
DEFAULTS = """- **Defaults.** Every decoder with its default knobs, the most accurate first. Δ: difference to
  `{careful}` with one token per step, paired by problem."""
BEST = """- **Which decoder?** The best setting of each decoder: the fewest forwards among those at most {give:g} points
  below the best accuracy of all decoders. Decoders that never reach that follow, each with its most accurate setting.
  Settings were chosen on the same problems that they are shown on, so the top of the table is slightly optimistic;
  `tacg recommend` chooses on other problems. AUP: the area under accuracy over TPF of the whole curve (d3LLM).
  "Ahead": that of the decoder minus that of the best other one, if it is known problem by problem; an interval that
  contains zero means neither clearly ahead nor clearly behind. A decoder of which more values were measured has a
  larger area by construction. This table and those below use only the first problems, as many as most settings were
  run on."""
FRONTIERS = """- **Against every threshold.** What these settings gain over `{base}` at *every* threshold, with straight
  lines between the measured ones: steps saved at equal accuracy and points of accuracy gained at equal steps, then the
  same for computed positions. The last two columns are the fair ones for decoders that look ahead in branches or shadow
  tokens (`lookum`, `lopa`, `wino`), which need fewer steps but more positions, and for those that compute less than
  the whole canvas (`streaming`). The table appears once two thresholds of `{base}` have been measured."""
OVER = """- **TACG over each.** `{gate}+X` with the default of X's main knob against X at every value of that knob. The
  last column counts the values of the knob at which the 95 % interval of the accuracy gained is above or below 0."""
POINTS = "- **Every point**, fast ones first: the value of the main knob, accuracy in percent, steps."
SHOWN = (
    "task", "spec", "name", "knob", "value", "default", "over", "accuracy", "accuracy_ci", "steps", "tpf", "n",
    "tokens_per_position", "speed", "aup", "correct",
)  # fmt: skip


def write_arena(points: Sequence[ResultRow], at_defaults: Sequence[ResultRow], report: Path, page: Path) -> None:
    """Write the report and the page from `standings` and `defaults`."""
    names = {"give": 100 * GIVE, "careful": CAREFUL, "base": DEFAULT_BASE, "gate": GATE}
    tables = "\n".join(part.format(**names) for part in (DEFAULTS, BEST, FRONTIERS, OVER, POINTS))
    parts = [each.markdown(report) for each in sections(points, at_defaults)]
    write_file(report, "\n".join([f"# The arena on {points[0]['model']}\n\n{WORDS}\n\n{tables}\n", *parts]))
    write_file(page, page_of(points))


def sections(points: Sequence[ResultRow], at_defaults: Sequence[ResultRow]) -> list[Section]:
    """One section per task."""
    found = []
    for task in tasks_of(points):
        mine, plain = ([row for row in rows if row["task"] == task] for rows in (points, at_defaults))
        made = [default_table(plain), best_table(mine), frontier_table(mine), gate_table(mine), point_table(mine)]
        found.append(Section(task, "", [table for table in made if table.lines], (), provenance([*plain, *mine])))
    return found


def tasks_of(rows: Sequence[ResultRow]) -> list[str]:
    """The tasks of rows, in order."""
    return list(dict.fromkeys(row["task"] for row in rows))


def default_table(rows: Sequence[ResultRow]) -> Table:
    """Every decoder of a task at its defaults, in the given order."""
    return (
        _costs(f"{rows[0]['task']}: defaults, {_problems(rows)}", rows, with_change=True) if rows else Table("", (), ())
    )


def best_table(rows: Sequence[ResultRow], give: float = GIVE) -> Table:
    """One line per decoder of a task, at its best setting; the best decoder first."""
    return _costs(f"{rows[0]['task']}: which decoder? ({_problems(rows)})", best_points(rows, give), with_change=False)


def _problems(rows: Sequence[ResultRow]) -> str:
    return f"n = {', '.join(map(str, sorted({row['n'] for row in rows})))}"


def _costs(title: str, rows: Sequence[ResultRow], *, with_change: bool) -> Table:
    """Accuracy and what it costs. The column of auxiliary forwards appears only if a decoder has any."""
    second = any(row["auxiliary_forwards"] for row in rows)
    area, ahead = (all(name in row for row in rows) for name in ("aup", "ahead"))
    lines = [
        (
            row["spec"], point(row), accuracy(row), *[change(row, "accuracy", 100)] * with_change,
            f"{row['steps']:.1f}", f"{row['tpf']:.2f}", f"{row['forwards'] / row['n']:.1f}",
            *[f"{row['auxiliary_forwards'] / row['n']:.1f}"] * second, f"{row['positions'] / row['n']:.0f}",
            f"{row['tokens_per_position']:.4f}", f"{row['speed']:.0f}" if row["speed"] else "",
            *([f"{row['aup']:.0f}"] if area else []),
            *([estimate(row["ahead"], row["ahead_ci"][0], row["ahead_ci"][1], "+.0f")] if ahead else []),
        )
        for row in rows
    ]  # fmt: skip
    columns = (
        "decoder", "setting", "accuracy %", *["Δ accuracy"] * with_change, "steps", "TPF", "forwards",
        *["auxiliary"] * second, "positions", "tokens/position", "tokens/s", *["AUP"] * area, *["ahead"] * ahead,
    )  # fmt: skip
    return Table(title, columns, tuple(lines))


def frontier_table(rows: Sequence[ResultRow], give: float = GIVE) -> Table:
    """The same settings against the whole frontier of confidence, in steps and in computed positions."""
    lines = [
        (
            found["steps"]["spec"], point(found["steps"]),
            *(gain(found[cost], name) for cost in ("steps", "positions") for name in ("saved", "gained")),
        )
        for found in against_default(rows, best_points(rows, give))
    ]  # fmt: skip
    columns = (
        "decoder", "setting", "steps saved %", "accuracy at equal steps", "positions saved %",
        "accuracy at equal positions",
    )  # fmt: skip
    return Table(f"{rows[0]['task']}: against every threshold of {DEFAULT_BASE}", columns, tuple(lines))


def gate_table(rows: Sequence[ResultRow]) -> Table:
    """TACG over each decoder against the whole frontier of that decoder."""
    lines = []
    for row in rows:
        if row["spec"].startswith(GATE) and row["default"] and "saved" in row:
            curve = [each for each in rows if each["spec"] == row["spec"]]
            above = sum(each["gained_ci"][0] > 0 for each in curve)
            below = sum(each["gained_ci"][1] < 0 for each in curve)
            count = f"{above} above, {below} below, of {len(curve)}"
            lines.append((
                row["spec"], row["over"], accuracy(row), f"{row['steps']:.1f}", gain(row, "saved"), gain(row, "gained"),
                count,
            ))  # fmt: skip
    columns = ("gate", "over", "accuracy %", "steps", "steps saved %", "accuracy gained", "values")
    return Table(f"{rows[0]['task']}: TACG over each", columns, tuple(lines))


def point_table(rows: Sequence[ResultRow]) -> Table:
    """The whole frontier of each decoder in one line."""
    lines = []
    for spec in dict.fromkeys(row["spec"] for row in rows):
        mine = [row for row in rows if row["spec"] == spec]
        points = (f"{value_of(row)}: {100 * row['accuracy']:.1f} in {row['steps']:.1f}" for row in mine)
        lines.append((spec, mine[0]["knob"], " · ".join(points)))
    return Table(f"{rows[0]['task']}: every point", ("decoder", "knob", "points"), tuple(lines))


def point(row: ResultRow) -> str:
    """The setting of a row: its main knob and value."""
    return f"{row['knob']}={value_of(row)}" if row["knob"] else "defaults"


def value_of(row: ResultRow) -> str:
    """The value of the main knob, as it is typed."""
    return "none" if row["value"] is None else str(row["value"])


def page_of(rows: Sequence[ResultRow]) -> str:
    """One HTML file with all points in it: a table that sorts, a chart that filters; it loads nothing."""
    shown = [{name: row[name] for name in SHOWN} | _of_one(row) for row in rows]
    data = json.dumps({"note": provenance(rows), "rows": shown}).replace("<", "\\u003c")  # no text closes the tag
    page = resources.files("tacg").joinpath("experiments", "arena.html").read_text(encoding="utf-8")
    style = resources.files("tacg").joinpath("trace", "canvas.css").read_text(encoding="utf-8")
    return page.replace("/*CANVAS.CSS*/", style, 1).replace("/*ROWS*/", data, 1)


def _of_one(row: ResultRow) -> dict[str, Any]:
    """Mean counts per problem."""
    counted = {"forwards": "forwards", "positions": "positions", "auxiliary": "auxiliary_forwards"}
    return {name: row[total] / row["n"] for name, total in counted.items()}
