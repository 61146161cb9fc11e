"""The report on a study: its rows as text, tables and plots. Nothing is measured here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tacg.experiments import ablate, diagnose
from tacg.experiments.paper_study import AS_PUBLISHED, GATED, UNTUNED
from tacg.files import write_file
from tacg.records.plots import draw_dynamics, draw_frontier, draw_heat, draw_match
from tacg.records.summary import paired
from tacg.records.tables import Section, Table, accuracy, change, gain, provenance, write_page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tacg.experiments.paper_study import Study
    from tacg.records.rows import ResultRow

WORTHWHILE = 0.08  # share of saved steps that a user would notice
INTRODUCTION = """Every figure and table here is drawn from rows by `tacg report`; nothing is typed by hand. Knobs were
tuned on the dev split. These are results of one model that we trained ourselves; `tacg law` measures the same on models
that others trained, and asks why ([how](judges.md#the-law))."""
COMPARISON = """Each gated policy was tuned on the dev split, three times: to lose nothing of the best dev accuracy, at
most two points, at most five. It is compared with the frontier of its base policy on the same test problems: the
measured thresholds (where a gated point is slower than all of them, higher ones too), those that the gate itself was
tuned to (for KLASS also its own tuned knobs), and straight lines between them. The frontier is picked on the test
problems themselves, the gated points are not, which favours the baseline. Intervals resample problems."""
PARTS = """With the default knobs (tuned ones often switch a part off). HG only: no promotions. TILG only: no
persistence. Seconds are wall time, and other processes may have used the cores, too."""
OTHERS = """TACG over confidence with the default knobs and one thing changed: where the authors' code departs from the
paper, and variants of our own (docs/concepts.md). Δ to the paper's gate, paired by problem."""
SIGNALS = """Every proposal of every step while one token per step is committed. AUC: among proposals of similar
confidence, how often a right one has a higher value than a wrong one. Match is with the token of
the reference answer, which on tasks with free wording counts another good wording as wrong."""
MAPS = """Support weight against floor (the paper's Fig. 3), gate length against EMA decay (Fig. 4); dev split."""
LONGER = """The tuned knobs of the usual length, for answers of that length and of twice it (the paper's Table 4);
both policies tuned on the dev split."""
LABELS = """Knobs found by accuracy on the dev split, and by agreement with what one token per step writes on the same
prompts (half for words in common, half for identical text), without any reference answer. Both may give up five points
of the best value, but of different measures. Δ to confidence with its default threshold."""


def write_report(study: Study, path: Path) -> Path:
    """Run what is missing and write the report, as Markdown and as HTML; plots are stored next to the rows."""
    sections = [section(study) for section in (comparison, parts, variants, signals, maps, longer, labels)]
    words = f"{INTRODUCTION}\n\n{abstract(study.compared, study.diagnosed)}"
    text = "\n".join([f"# Results\n\n{words}\n", *(section.markdown(path) for section in sections)])
    write_file(path, text)
    write_page(path.with_suffix(".html"), "Results", [Section("", words), *sections])
    return path


# --- its sections ----------------------------------------------------------------------------------------------------


def comparison(study: Study) -> Section:
    """Tuned gates against the whole frontier of their base policy."""
    rows = study.compared
    picture = draw_frontier(rows, study.home / "frontier.png")
    words = f"{COMPARISON}\n\n{verdict(rows)}"
    return Section("TACG against the whole frontier", words, versus(rows), [picture], provenance(rows))


def parts(study: Study) -> Section:
    """What each part of the gate does."""
    rows = study.parts()
    picture = draw_dynamics(rows, study.home / "dynamics.png")
    return Section("What each part does", PARTS, ablate.tables(rows), [picture], provenance(rows))


def variants(study: Study) -> Section:
    """Departures from the paper's gate, each compared with the paper's own."""
    rows = study.variants()
    return Section("Variants of the gate", OTHERS, [_paired_table(rows, AS_PUBLISHED)], (), provenance(rows))


def signals(study: Study) -> Section:
    """Fig. 1 and more: which signal separates right from wrong among proposals of similar confidence."""
    rows = study.diagnosed
    pictures = [draw_match(rows, study.home / f"match-{target}.png", target) for target in diagnose.TARGETS]
    tables = diagnose.tables(rows, "reference")
    return Section("Which signal carries what", SIGNALS, tables, pictures, provenance(rows))


def maps(study: Study) -> Section:
    """Figs. 3 and 4."""
    by_name = study.maps()
    pictures = [draw_heat(rows, study.home / f"{name}.png") for name, rows in by_name.items()]
    return Section("Sensitivity", MAPS, (), pictures, provenance([row for rows in by_name.values() for row in rows]))


def longer(study: Study) -> Section:
    """Table 4: both policies at the usual length and at twice that."""
    rows = study.longer()
    bases = {(row["task"], row["length"]): row for row in rows if row["name"] == "confidence"}
    lines = []
    for row in rows:
        mine = row | paired(row, bases[row["task"], row["length"]])
        lines.append((
            row["task"], str(row["length"]), row["name"], accuracy(row), f"{row['steps']:.1f}", f"{row['tpf']:.2f}",
            change(mine, "accuracy", 100), change(mine, "steps"),
        ))  # fmt: skip
    columns = ("task", "length", "decoder", "accuracy %", "steps", "TPF", "Δ accuracy", "Δ steps")
    return Section("Twice the length", LONGER, [Table("", columns, tuple(lines))], (), provenance(rows))


def labels(study: Study) -> Section:
    """Tuning without labels next to tuning with them."""
    rows = study.labels()
    return Section("Tuning without labels", LABELS, [_paired_table(rows, UNTUNED)], (), provenance(rows))


# --- from rows to results --------------------------------------------------------------------------------------------


def judgement(row: ResultRow) -> str:
    """Whether a gated point lies above its base policy's frontier, by the 95 % intervals of steps and accuracy."""
    low, high = zip(row["gained_ci"], *[] if row["beyond"] else [row["saved_ci"]], strict=True)
    better, worse = max(low) > 0, min(high) < 0
    return "helps" if better and not worse else "hurts" if worse and not better else "no clear difference"


def abstract(compared: Sequence[ResultRow], diagnosed: Sequence[ResultRow]) -> str:
    """A summary: at how many points a gate helps, on which tasks, and what signals add to confidence."""
    lines = []
    for policy, base in GATED.items():
        points = [row for row in compared if row["spec"] == policy]
        said = {word: [row for row in points if judgement(row) == word] for word in ("helps", "hurts")}
        where = {word: ", ".join(dict.fromkeys(row["task"] for row in rows)) for word, rows in said.items()}
        saved = sorted({row["task"] for row in said["helps"] if row["saved"] >= WORTHWHILE})
        lines.append(
            f"- {policy} against the whole frontier of {base}, {len(points)} tuned points (n = {points[0]['n']} each): "
            + "; ".join(f"{word} at {len(rows)}" + f" ({where[word]})" * bool(rows) for word, rows in said.items())
            + f"; no clear difference at the others. At least {100 * WORTHWHILE:.0f} % fewer steps at equal accuracy: "
            f"{', '.join(saved) or 'nowhere'}. Each interval is for one point: among many, some miss by chance."
        )
    values = ", ".join(
        f"{name} " + "/".join(f"{(row['auc']['reference'][name] or [math.nan])[0]:.2f}" for row in diagnosed)
        for name in diagnosed[0]["auc"]["reference"]
    )  # fmt: skip
    lines.append(
        "- What a signal knows beyond confidence (AUC among proposals of similar confidence, match with the reference "
        "answer; 0.5 is nothing, below 0.5 a warning; the value for confidence itself shows how similar they are; "
        f"{'/'.join(row['task'] for row in diagnosed)}): {values}."
    )
    return "\n".join(lines)


def verdict(rows: Sequence[ResultRow]) -> str:
    """One sentence for each gated point: where it helps and where not."""
    lines = []
    for row in (row for row in rows if "saved" in row):
        lines.append(
            f"- {row['task']}, {row['name']}: {judgement(row)}. Steps saved at equal accuracy {gain(row, 'saved')} %, "
            f"accuracy gained at equal steps {gain(row, 'gained')}"
            + ("; more accurate than every point of the frontier." if row["beyond"] else ".")
        )
    return "\n".join(lines)


def versus(rows: Sequence[ResultRow]) -> list[Table]:
    """Every row of the comparison, one table per task."""
    columns = ("decoder", "accuracy %", "steps", "TPF", "n")
    return [
        Table(task, columns, tuple(
            (row["name"], accuracy(row), f"{row['steps']:.1f}", f"{row['tpf']:.2f}", str(row["n"]))
            for row in rows if row["task"] == task
        ))
        for task in dict.fromkeys(row["task"] for row in rows)
    ]  # fmt: skip


def _paired_table(rows: Sequence[ResultRow], base: str) -> Table:
    """One line per row, with its change from the row named `base` on the same problems."""
    bases = {row["task"]: row for row in rows if row["name"] == base}
    lines = []
    for row in rows:
        mine = row | paired(row, bases[row["task"]])
        lines.append((
            row["task"], row["name"], accuracy(row), f"{row['steps']:.1f}", change(mine, "accuracy", 100),
            change(mine, "steps"),
        ))  # fmt: skip
    return Table("", ("task", "knobs", "accuracy %", "steps", "Δ accuracy", "Δ steps"), tuple(lines))
