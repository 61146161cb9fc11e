"""The law in words, tables and one plot. Nothing is measured here: all figures are computed from cells."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError
from tacg.experiments.ablate import PARTS
from tacg.experiments.diagnose import FEATURES
from tacg.experiments.law import AUTO, BASES, BY_STEPS, FRONTIER, HISTORY, RANDOM, STARTS, WHOLE, gain_of, mean_over
from tacg.experiments.law_fit import ANSWERED, ENOUGH
from tacg.files import write_file
from tacg.models.judges import JUDGES
from tacg.policies.base import DEFAULT_BASE
from tacg.policies.pages import between
from tacg.records.plots import draw_law
from tacg.records.tables import Section, Table, estimate, gain, provenance
from tacg.tasks import task_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tacg.records.rows import ResultRow

MARKS = ("<!-- on judges: make decoder-pages -->", "<!-- end of on judges -->")
# What the tables of gains show, by the field of a gain.
GOALS = {
    "saved": "steps saved at equal score, %",
    "gained": "score gained at equal steps, points",
    "accuracy_gained": "accuracy gained at equal steps, points",
}
GOAL = "saved"  # what the law is about
WORDS = f"""When does the trajectory help? A cell is a model on a task. In each, TACG (the paper's knobs), its History
Gate alone and temporal support alone (TILG) are compared with the whole frontier of their base: `{DEFAULT_BASE}` at
every threshold, `{BASES[1]}` at every bound, with straight lines between the measured ones. A gain is the mean over the
values of the main knob at which a gate was tried, without those that another one beats: score at equal steps, in
points, and steps at equal score, in percent. The score of an answer is the share of it that is right: masked tokens,
cells of a sudoku, unit tests; a story is right or wrong. It varies less than accuracy (whole answers), which is shown
beside it. Intervals of a cell resample problems, those of a mean over cells resample cells. Drawn from rows by
`tacg law`; nothing is typed by hand."""
BEHIND = "What `tacg law` measured, one line per model and task. Drawn from rows; nothing is typed by hand."
CONTROLS = f"""Controls do part of what a gate does, without a trajectory. There are three: a high threshold for the
first two steps of a block; a threshold that falls with the share still masked; and `{DEFAULT_BASE}` with commits held
back at random, at the rate at which the History Gate held them back in that cell. "Against careful starts" compares
with the frontier of `{DEFAULT_BASE}` and all points of both careful starts together, "against held at random" likewise.
A frontier with more points is slightly optimistic."""
OURS = f"""`{AUTO}` follows the trajectory as a price, not as a gate: a proposal that lasts costs less of a budget. AUP
is the area under accuracy over TPF (d3LLM); all curves start at the most careful threshold of `{DEFAULT_BASE}`.
"Ahead" is the AUP of `{AUTO}` minus that of the best other decoder in the cell, which is chosen anew in each resample.
An interval that contains zero means: neither clearly ahead nor clearly behind. `{AUTO}` was chosen on other problems:
the dev split of pocket's tasks, and of `reactions` with rxnmapper."""


def write_report(
    cells: Sequence[ResultRow], law: Mapping[str, Any], report: Path, picture: Path, waiting: int = 0
) -> None:
    """Write the report and its plot, if matplotlib is installed. `waiting`: incomplete cells, which are not shown."""
    pictures = []
    if points := pictured(cells, law):
        with contextlib.suppress(TacgError):  # without matplotlib there are still the tables
            pictures.append(draw_law(points, picture))
    left = f" Incomplete cells, not shown: {waiting}." if waiting else ""
    details = picture.with_name("cells.md")
    words = f"{WORDS}{left} [Every cell]({picture.parent.name}/{details.name}) has all gains, controls and features."
    for title, said, file, parts in (
        ("When does the trajectory help?", words, report, sections(cells, law, pictures)),
        (
            "Every cell of the law",
            f"{BEHIND} The [report](../{report.name}) says what follows.",
            details,
            behind(cells, law),
        ),
    ):
        write_file(file, "\n".join([f"# {title}\n\n{said}\n", *(part.markdown(file) for part in parts)]))


def sections(cells: Sequence[ResultRow], law: Mapping[str, Any], pictures: Sequence[Path] = ()) -> list[Section]:
    """What the trajectory adds, the law with its plot, and how `auto` does."""
    note = provenance(cells)
    return [
        Section("What the trajectory adds", adds(cells), [], (), note),
        Section("The law", said(law), [], pictures, note),
        Section("A default that wins?", f"{wins(cells)}\n\n{OURS}", [auto_table(cells)], (), note),
    ]


def behind(cells: Sequence[ResultRow], law: Mapping[str, Any]) -> list[Section]:
    """All figures that the report is computed from."""
    note = provenance(cells)
    meanings = "\n".join(f"- {name}: {meaning}" for name, meaning in FEATURES.items())
    correlations = [correlation_table(law)] if law["rules"] else []
    return [
        Section("Gains", CONTROLS, [gain_table(cells, goal) for goal in GOALS], (), note),
        Section("Features", meanings, [*feature_tables(cells), *correlations], (), note),
    ]


# --- words -----------------------------------------------------------------------------------------------------------


def adds(cells: Sequence[ResultRow]) -> str:
    """One paragraph: what gates gain, what careful starts alone gain, and what gates gain beyond those."""
    if not cells:
        return "No cell is finished yet."
    few = f"There are too few cells, {len(cells)} of {ENOUGH}, to say what holds in general. " * (len(cells) < ENOUGH)
    edges = [gain_of(cell, WHOLE)["gained_ci"] for cell in cells]
    above, below = sum(low > 0 for low, _ in edges), sum(high < 0 for _, high in edges)
    starts = ", ".join(f"{_mean(cells, start)} ({start})" for start in STARTS)
    beyond = mean_over(cells, "gained", WHOLE, DEFAULT_BASE, "careful starts")
    chance = mean_over(cells, "gained", HISTORY, DEFAULT_BASE, RANDOM)
    return (
        f"{few}Over the whole frontier of `{DEFAULT_BASE}`, TACG gains {_mean(cells, WHOLE)} points at equal steps on "
        f"average over {len(cells)} {_plural(len(cells), 'cell')}, and saves {_mean(cells, WHOLE, goal='saved')} % of "
        f"the steps at equal score; the gain is clearly above 0 in {above} of them and clearly below in {below}. A "
        f"careful start alone, which follows no trajectory, gains {starts}. Against `{DEFAULT_BASE}` and careful "
        f"starts together TACG gains {_shown(beyond)} points: "
        f"{_judged(beyond, few, 'the trajectory', 'a careful start')} The History Gate alone gains "
        f"{_mean(cells, HISTORY)}; holding back at random at its rate gains {_mean(cells, RANDOM)}, and against that "
        f"the History Gate gains {_shown(chance)}: {_judged(chance, few, 'persistence', 'mere delay')} Over "
        f"`{BASES[1]}`, TACG gains {_mean(cells, WHOLE, BASES[1])} points at equal steps and saves "
        f"{_mean(cells, WHOLE, BASES[1], goal='saved')} % of the steps at equal score."
    )


def with_brief(text: str, cells: Sequence[ResultRow]) -> str:
    """The text with an up-to-date `brief` between its two marks."""
    return between(text, MARKS, brief(cells))


def brief(cells: Sequence[ResultRow]) -> str:
    """For the README: what TACG, a careful start and `auto` save on models that others trained."""
    others = [cell for cell in cells if cell["model"] in JUDGES]
    judges = ", ".join(f"`{name}`" for name in sorted({cell["model"] for cell in others}))
    sizes = " or ".join(str(n) for n in sorted({cell["n"] for cell in others}))
    which = {"TACG": WHOLE, "a careful start, which follows no trajectory,": BY_STEPS, f"`{AUTO}`": AUTO}
    saved = [f"{name} saves {_mean(others, method, goal='saved')} %" for name, method in which.items()]
    return (
        f"On {len(others)} tasks of models that others trained ({judges}; n = {sizes} each), compared with\n"
        f"`{DEFAULT_BASE}` at every threshold: {', '.join(saved[:-1])}\nand {saved[-1]} of the steps at equal score "
        "(mean and 95 % interval over tasks).\n"
    )


def wins(cells: Sequence[ResultRow]) -> str:
    """How `auto` did: steps saved, and in how many cells it has the best AUP."""
    if not cells:
        return "No cell is finished yet."
    right = [cell for cell in cells if cell["accuracy"] >= ANSWERED]  # AUP is about whole answers
    unseen = [cell for cell in right if not chosen_on(cell)]
    tied = sum(cell["ahead_ci"][1] >= 0 for cell in unseen)
    saved = {goal: _mean(cells, AUTO, goal=goal) for goal in ("saved", "accuracy_saved")}
    return (
        f"At equal score, `{AUTO}` saves {saved['saved']} % of the steps of `{DEFAULT_BASE}` (at equal accuracy "
        f"{saved['accuracy_saved']} %) and {_mean(cells, AUTO, DEFAULT_BASE, BASES[1], goal='saved')} % of those of "
        f"`{BASES[1]}`. Its AUP is the best of {len(right[0]['aup']) if right else 0} decoders in "
        f"{sum(cell['ahead'] >= 0 for cell in right)} of {len(right)} {_plural(len(right), 'cell')} in which whole "
        f"answers are right. In the {len(unseen)} of these that played no part in choosing it, it is the best or "
        f"within its interval of the best in {tied}, and clearly behind in {len(unseen) - tied}."
    )


def chosen_on(cell: ResultRow) -> bool:
    """Whether `auto` was chosen on the model and the task, if with other problems."""
    return cell["task"] in task_names() or (cell["model"], cell["task"]) == ("rxnmapper", "reactions")


def _judged(found: tuple[float, float, float], few: str, what: str, than: str) -> str:
    if few:
        return f"whether {what} adds something beyond {than} is open."
    if found[1] > 0:
        return f"{what} adds something beyond {than}."
    return f"{what} is worth less than {than}." if found[2] < 0 else f"{what} adds nothing clear beyond {than}."


def _mean(cells: Sequence[ResultRow], *which: str, goal: str = "gained") -> str:
    return _shown(mean_over(cells, goal, *which))


def _shown(found: tuple[float, float, float]) -> str:
    value, low, high = (100 * each for each in found)
    return f"{value:+.1f}" if math.isnan(low) else estimate(value, low, high)


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


def said(law: Mapping[str, Any]) -> str:
    """The rule of each gate and how it did on held-out cells; or that there are too few cells."""
    count, needed = law["cells"], law["needed"]
    reasons = {"unanswered": "hardly any answer was right", "short": f"a block takes fewer than {law['room']:g} steps"}
    left = "".join(f" {law[name]} more do not count, because {why}." for name, why in reasons.items() if law[name])
    if not law["rules"]:
        return f"There is no law yet: it takes {needed} cells, and {count} {'is' if count == 1 else 'are'} there.{left}"
    tested = ", ".join(
        f"{each['right']} of {each['of']} with {name} held out ({each['clear_right']} of {each['clear_of']} where the "
        "gain is clear)"
        for name, each in law["verdicts"].items()
    )
    lines = [
        "The law predicts what a gate saves: steps at equal score, in percent of those of its base. A rule is the mean "
        f"over {count} cells, plus one or two features if these predict clearly better. It is tested on cells that "
        f"neither choice nor fit had seen. `tacg diagnose` names the gate with the best prediction over each base, and "
        f"`{AUTO}`; on held-out cells the signs of these predictions were right in {tested}.{left}\n"
    ]
    for rule in law["rules"]:
        fit = rule[GOAL]
        terms = zip(fit["features"], fit["weights"], strict=True)
        formula = " ".join([f"{100 * fit['bias']:+.1f}", *(f"{100 * weight:+.1f} {name}" for name, weight in terms)])
        units = " (features in standard deviations)" * bool(fit["features"])
        signs = "; ".join(
            f"{each['right']} of {each['of']} signs right with {name} held out"
            for name, each in rule["held_out"].items()
        )
        lines.append(f"- {_gate_name(rule)}: {formula} %{units}. {signs}.")
    return "\n".join(lines)


def _gate_name(gate: Mapping[str, Any]) -> str:
    return f"{gate['method']} over {gate['base']}"


# --- tables and plot ----------------------------------------------------------------------------------------------


def gain_table(cells: Sequence[ResultRow], goal: str, brief: bool = False) -> Table:
    """One line per cell, one column per method; `brief`: only the most important methods."""
    columns: dict[str, tuple[str, ...]] = {part: (part,) for part in PARTS}
    columns |= {f"{WHOLE} against careful starts": (WHOLE, DEFAULT_BASE, "careful starts")}
    columns |= {f"{HISTORY} against {RANDOM}": (HISTORY, DEFAULT_BASE, RANDOM)}
    if not brief:
        columns |= {each: (each,) for each in (*STARTS, RANDOM)}
        columns |= {f"{part} over {BASES[1]}": (part, BASES[1]) for part in PARTS}
    lines = [(*_cell_name(cell), *(gain(gain_of(cell, *which), goal) for which in columns.values())) for cell in cells]
    if len(cells) > 1:
        lines.append(("mean", "", *(_shown(mean_over(cells, goal, *which)) for which in columns.values())))
    return Table(GOALS[goal], ("model", "task", *columns), tuple(lines))


def auto_table(cells: Sequence[ResultRow]) -> Table:
    """What `auto` saves, and the AUP of every decoder."""
    against = (FRONTIER, BASES[1])
    decoders = list(cells[0]["aup"]) if cells else []
    lines = []
    for cell in cells:
        saved = (gain(gain_of(cell, AUTO, DEFAULT_BASE, each), "saved") for each in against)
        low, high = cell["ahead_ci"]
        aups = (f"{cell['aup'][name]:.0f}" for name in decoders)
        lines.append((*_cell_name(cell), *saved, *aups, estimate(cell["ahead"], low, high, "+.0f")))
    columns = (*(f"saved over {each}" for each in BASES), *(f"AUP {name}" for name in decoders), "ahead")
    return Table(f"{AUTO}: steps saved at equal score, %, and AUP", ("model", "task", *columns), tuple(lines))


def feature_tables(cells: Sequence[ResultRow]) -> list[Table]:
    """The features without labels, then overconfidence and AUC against reference answers."""
    made = []
    for kind, title in (("features", "without labels"), ("reference", "against the reference answers")):
        lines = []
        for cell in cells:
            best = (f"{100 * cell[name]:.1f}" for name in ("score", "accuracy"))
            held = ", ".join(f"{100 * rate:.0f}" for rate in cell["rates"].values())
            numbers = (_number(cell[kind][name]) for name in FEATURES)
            lines.append((*_cell_name(cell), *numbers, *best, held, f"{cell['seconds']:.0f}"))
        columns = ("model", "task", *FEATURES, "best score %", "best accuracy %", "held back %", "seconds")
        made.append(Table(title, columns, tuple(lines)))
    return made


def correlation_table(law: Mapping[str, Any]) -> Table:
    """Spearman's rho with its interval, one line per feature."""
    gates = list(dict.fromkeys(_gate_name(each) for each in law["correlations"]))
    known = {(each["feature"], _gate_name(each)): each for each in law["correlations"]}
    lines = []
    for name in dict.fromkeys(each["feature"] for each in law["correlations"]):
        mine = [known.get((name, gate)) for gate in gates]
        lines.append((name, *("" if each is None else _rho(each) for each in mine)))
    return Table("rank correlation with the steps saved, over cells", ("feature", *gates), tuple(lines))


def _rho(each: Mapping[str, Any]) -> str:
    low, high = each["rho_ci"]
    return estimate(each["rho"], low, high, "+.2f")


def pictured(cells: Sequence[ResultRow], law: Mapping[str, Any]) -> list[ResultRow]:
    """What TACG over the default base and `auto` save in each cell, over the steps that a block takes."""
    axis = FEATURES["steps"].replace("`", "")
    found = []
    for method in (WHOLE, AUTO):
        rule = next((each for each in law["rules"] if (each["method"], each["base"]) == (method, DEFAULT_BASE)), None)
        for cell in cells:
            won = gain_of(cell, method)
            facts = {"model": cell["model"], "gate": method, "feature": axis, "value": cell["features"]["steps"]}
            facts |= {"gain": won[GOAL], "gain_ci": won[f"{GOAL}_ci"]}
            found.append(facts | ({"expected": rule[GOAL]["bias"]} if rule else {}))
    return found


def _cell_name(cell: ResultRow) -> tuple[str, str]:
    return cell["model"], cell["task"] + ("" if cell["split"] == "test" else f" ({cell['split']})")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
