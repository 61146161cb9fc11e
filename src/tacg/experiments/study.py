"""Every experiment of the paper on one model, and the report that is drawn from their rows.

Knobs are tuned on the dev split, sensitivity and signals are looked at there too; all else is measured on test
problems.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tacg.engine.request import resolve
from tacg.experiments import ablate, diagnose, sweep, tune
from tacg.experiments.frontier import over_frontiers
from tacg.experiments.grid import Cell, Sample, paired, run
from tacg.experiments.picture import draw_dynamics, draw_frontier, draw_heat, draw_match
from tacg.experiments.rows import Ledger, Row
from tacg.experiments.show import Section, Table, accuracy, change, gain, provenance, write_page
from tacg.files import write_file
from tacg.policies.base import Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tacg.llm import LLM
    from tacg.tasks import Task

GATED = {"tacg": "confidence", "tacg+klass": "klass"}
GIVES = (0.0, 0.02, 0.05)  # what a tuned point may lose of the best dev accuracy
ALWAYS = 0.9995  # a threshold that is as good as one token a step
WORTHWHILE = 0.08  # share of steps saved that a user would notice
# Where tuning starts, beside the defaults at every threshold: the History Gate alone, found on dev problems.
STARTS: tuple[dict[str, Any], ...] = tuple(
    {"threshold": threshold, "tau_escape": escape, "m_base": persist, "k_extra": 0, "observe": scope}
    for scope in ("block", "sequence")
    for threshold, escape, persist in ((0.7, 0.95, 2), (0.8, 0.98, 2), (0.8, 0.98, 3), (0.95, 0.995, 3))
)
# One departure at a time: what the authors' code does differently, and what we thought of.
VARIANTS: dict[str, dict[str, Any]] = {
    "trajectories of the whole answer": {"observe": "sequence"},
    "fallback by the base policy": {"fallback": "base"},
    "log-ratio support": {"support": "log_ratio"},
    "support counted against": {"support": "steady"},
    "no promotion of sudden peaks": {"max_support": 0.15},
    "budget by ratio": {"k_ratio": 0.25},
    "what was held back is not promoted": {"rejoin": False},
    "promotions without persistence": {"m_extra": 1},
    "no support": {"support_lambda": 0.0},
}


@dataclass(frozen=True)
class Scale:
    """How many problems: of the comparison, of the other tables, of a map's point; settings that are searched beyond
    the known ones (half of that for KLASS), problems of a trial, and of the second look at the best of TACG (half for
    others).
    """

    test: int = 1000
    part: int = 128
    point: int = 40
    trials: int = 12
    trial: int = 48
    again: int = 192
    thresholds: tuple[float, ...] = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)

    @classmethod
    def glance(cls) -> Scale:
        """Enough to see that everything works."""
        return cls(test=6, part=4, point=3, trials=2, trial=4, again=4, thresholds=(0.5, 0.9))


@dataclass
class Study:
    """The experiments on some tasks. Rows go to one file under `home`; started again, the study goes on."""

    llm: LLM
    tasks: Sequence[Task]
    scale: Scale
    home: Path
    bar: Callable[[str, int], Any]  # opens a progress bar of a title and a number of problems
    seed: int = 0
    batch_size: int = 32
    trials: dict[str, list[Row]] = field(default_factory=dict)

    @functools.cached_property
    def ledger(self) -> Ledger:
        """All rows."""
        return Ledger(self.home / "rows.jsonl")

    def sample(self, n: int, split: str = "test") -> Sample:
        """The first `n` problems of a split."""
        return Sample(n, self.seed, split, self.batch_size)

    def run(self, title: str, cells: Sequence[Cell], n: int, split: str = "test") -> list[Row]:
        """Evaluate cells under one bar."""
        with self.bar(title, n * len(cells)) as tick:
            return run(self.llm, cells, self.sample(n, split), self.ledger, tick)

    # -- tuning, on the dev split ----------------------------------------------------------------------------------

    def tuned(self, task: Task, policy: str, *, labels: bool = True) -> list[Row]:
        """The front of a search, looked at again on more problems: what was best by luck falls back."""
        title = f"{task.name} · tuning {policy}" + ("" if labels else " without labels")
        if title not in self.trials:
            scale, space = self.scale, tune.space_of(policy)
            start = tune.defaults(policy, space)
            every = 2 if "klass" in policy else 1  # it takes twice the steps
            first = [start, *(start | {"threshold": threshold} for threshold in scale.thresholds[::every])]
            first += [start | known for known in STARTS[::every] if known.keys() <= space.keys()]
            first = [each for number, each in enumerate(first) if each not in first[:number]]
            trials = len(first) + (scale.trials // every if len(space) > 1 else 0)
            with self.bar(title, trials * scale.trial) as tick:
                judge = self.judge(task, policy, labels, scale.trial, tick)
                rows = tune.tune(judge, space, trials, self.seed, first)
            best = tune.front(rows)
            more = scale.again if policy == "tacg" else scale.again // 2
            with self.bar(f"{title}, second look", more * len(best)) as tick:
                judge = self.judge(task, policy, labels, more, tick)
                again = [judge(row["settings"], "again") | {"settings": row["settings"]} for row in best]
            self.trials[title] = again
        return self.trials[title]

    def judge(self, task: Task, policy: str, labels: bool, n: int, tick: Any) -> tune.Judge:
        """By accuracy, or by agreement with one token a step."""
        if labels:
            return tune.by_labels(self.llm, task, policy, self.sample(n, "dev"), self.ledger, tick)
        prompts = [problem.prompt for problem in task.problems("dev", n, self.seed)]
        return tune.by_agreement(self.llm, prompts, policy, task.decode, self.ledger, tick, self.batch_size)

    def points(self, task: Task, policy: str) -> dict[float, dict[str, Any]]:
        """Tuned settings from careful to fast, by what they may lose; written as presets too."""
        found = {}
        for give in GIVES:
            chosen = tune.choose(self.tuned(task, policy), give)
            about = f"{task.name}, dev quality {chosen['quality']:.3f}, {chosen['steps']:.1f} steps, may lose {give}"
            tune.write_preset(self.preset(task, policy, give), policy, chosen["settings"], about)
            found[give] = chosen["settings"]
        return found

    def preset(self, task: Task, policy: str, give: float) -> Path:
        """The file of a tuned point."""
        return self.home / f"{task.name}.{policy}.{give}.toml"

    # -- the comparison, on the test split -------------------------------------------------------------------------

    @functools.cached_property
    def compared(self) -> list[Row]:
        """Rows of base policies and of tuned gates, these with what they gain over the base policy's frontier."""
        rows: list[Row] = []
        for policy, base in GATED.items():
            n = self.scale.test if base == "confidence" else self.scale.part
            cells = [cell for task in self.tasks for cell in self.rivals(task, policy, base)]
            mine = self.run(f"comparison over {base}", cells, n)
            for task in self.tasks:
                mine += self.slower(task, base, [row for row in mine if row["task"] == task.name], n)
            rows += sorted(mine, key=lambda row: bool(row["spec"] in GATED))
        return over_frontiers(rows, GATED)

    def slower(self, task: Task, base: str, rows: Sequence[Row], n: int) -> list[Row]:
        """More of the base policy's frontier: ever higher thresholds, until one is as slow as every gated point."""
        found: list[Row] = []
        slowest = max(row["steps"] for row in rows)
        threshold = max(self.scale.thresholds)
        while max(row["steps"] for row in (*rows, *found) if row["spec"] == base) < slowest and threshold < ALWAYS:
            threshold = round(1 - (1 - threshold) / 2, 5)
            found += self.run(f"{base} {threshold}", [self.cell(task, base, {"threshold": threshold})], n)
        return found

    def cell(self, task: Task, spec: str, knobs: dict[str, Any], name: str = "") -> Cell:
        """A point of the comparison."""
        tags = {"spec": spec, "x_name": "the threshold or tuned knobs"}
        return Cell(task, spec, knobs, name or f"{spec} {knobs['threshold']}", tags)

    def rivals(self, task: Task, policy: str, base: str) -> Iterator[Cell]:
        """The frontier of a base policy and the tuned points of a gate over it, nothing twice.

        The base policy gets every setting that the gate found for it: a gate that does nothing is on the frontier.
        """
        points, plain = self.points(task, policy), base == "confidence"
        known: list[tuple[str, str, dict[str, Any]]] = [
            (base, f"{base} {each}", {"threshold": each}) for each in self.scale.thresholds[:: 1 if plain else 2]
        ]
        if not plain:  # more than a threshold to set
            known += [(base, f"{base}, tuned", knobs) for knobs in self.points(task, base).values()]
        for knobs in points.values():
            made, decode = resolve(policy, knobs)
            assert isinstance(made, Wrapper)
            own = made.base.values() | ({} if plain else {"observe": decode.observe})
            known.append((base, f"{base} {own['threshold']}" + ", as in the gate" * (not plain), own))
        for knobs in points.values():
            gives = ", ".join(f"{100 * give:.0f}" for give, same in points.items() if same == knobs)
            known.append((policy, f"{policy}, tuned, may lose {gives}", knobs))
        seen = []
        for spec, name, knobs in known:
            if (rule := resolve(spec, knobs)) not in seen:
                seen.append(rule)
                yield self.cell(task, spec, knobs, name)

    def comparison(self) -> Section:
        """Tuned gates against the whole frontier of their base policy."""
        rows = self.compared
        picture = draw_frontier(rows, self.home / "frontier.png")
        words = f"{COMPARISON}\n\n{verdict(rows)}"
        return Section("TACG against the whole frontier", words, versus(rows), [picture], provenance(rows))

    # -- the rest --------------------------------------------------------------------------------------------------

    def parts(self) -> Section:
        """Table 3, Fig. 5 and Table 5: what each part of the gate does."""
        with self.bar("parts", 4 * len(GATED) * len(self.tasks) * self.scale.part) as tick:
            sample = self.sample(self.scale.part)
            rows = ablate.ablate(self.llm, self.tasks, list(GATED), sample, ledger=self.ledger, tick=tick)
        picture = draw_dynamics(rows, self.home / "dynamics.png")
        return Section("What each part does", PARTS, ablate.tables(rows), [picture], provenance(rows))

    def maps(self) -> Section:
        """Figs. 3 and 4 on the dev split."""
        pictures, every = [], []
        for name, x, y in (
            ("fig3", ("support_lambda", (0.0, 0.05, 0.5, 2.0)), ("tau_floor", (0.5, 0.7, 0.9))),
            ("fig4", ("m_base+m_extra", (1, 2, 3, 4)), ("beta", (0.0, 0.5, 0.95))),
        ):
            across, up = (sweep.Axis(tuple(knobs.split("+")), values) for knobs, values in (x, y))
            points = len(across.values) * len(up.values) * len(self.tasks)
            with self.bar(f"map {name}", points * self.scale.point) as tick:
                sample = self.sample(self.scale.point, "dev")
                rows = sweep.sweep(self.llm, self.tasks, ["tacg"], across, up, sample, None, self.ledger, tick)
            pictures.append(draw_heat(rows, self.home / f"{name}.png"))
            every += rows
        return Section("Sensitivity", MAPS, (), pictures, provenance(every))

    @functools.cached_property
    def diagnosed(self) -> list[Row]:
        """What every signal knows, a row a task."""
        with self.bar("signals", self.scale.point * len(self.tasks)) as tick:
            sample = self.sample(self.scale.point, "dev")
            return diagnose.diagnose(self.llm, self.tasks, "schedule", sample, self.ledger, tick)

    def signals(self) -> Section:
        """Fig. 1 and beyond: which signal tells right from wrong among proposals of like confidence."""
        rows = self.diagnosed
        pictures = [draw_match(rows, self.home / f"match-{target}.png", target) for target in diagnose.TARGETS]
        tables = diagnose.tables(rows, "reference")
        return Section("Which signal carries what", SIGNALS, tables, pictures, provenance(rows))

    def variants(self) -> Section:
        """Departures from the paper's gate, one at a time."""
        known: dict[str, dict[str, Any]] = {"the paper's": {}} | VARIANTS
        cells = [Cell(task, "tacg", knobs, name) for task in self.tasks for name, knobs in known.items()]
        rows = self.run("variants", cells, self.scale.part)
        return Section("Variants of the gate", OTHERS, [_paired_table(rows, "the paper's")], (), provenance(rows))

    def longer(self) -> Section:
        """Table 4: answers of twice the length, with the knobs tuned for the usual one."""
        cells = []
        for task in self.tasks:
            knobs = {policy: self.points(task, policy)[GIVES[-1]] for policy in ("confidence", "tacg")}
            for times in (1, 2):
                length = {"gen_length": times * task.decode["gen_length"]}
                tags = {"length": length["gen_length"]}
                cells += [Cell(task, policy, mine | length, policy, tags) for policy, mine in knobs.items()]
        rows = self.run("twice the length", cells, self.scale.part)
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

    def labels(self) -> Section:
        """Tuning without labels next to tuning with them, both measured on test problems."""
        cells = []
        for task in self.tasks:
            blind = tune.choose(self.tuned(task, "tacg", labels=False), GIVES[-1])["settings"]
            cells.append(Cell(task, "confidence", {}, "confidence, defaults"))
            cells.append(Cell(task, "tacg", {}, "tacg, defaults"))
            cells.append(Cell(task, "tacg", self.points(task, "tacg")[GIVES[-1]], "tacg, tuned with labels"))
            cells.append(Cell(task, "tacg", blind, "tacg, tuned without labels"))
        rows = self.run("tuning compared", cells, self.scale.part)
        table = _paired_table(rows, "confidence, defaults")
        return Section("Tuning without labels", LABELS, [table], (), provenance(rows))

    def report(self, path: Path) -> Path:
        """Run what is missing and write the report, as Markdown and as a page; pictures lie beside the rows."""
        parts = (
            self.comparison, self.parts, self.variants, self.signals, self.maps, self.longer, self.labels,
        )  # fmt: skip
        made = [part() for part in parts]
        words = f"{INTRODUCTION}\n\n{abstract(self.compared, self.diagnosed)}"
        text = "\n".join([f"# Results\n\n{words}\n", *(section.markdown(path) for section in made)])
        write_file(path, text)
        write_page(path.with_suffix(".html"), "Results", [Section("", words), *made])
        return path


def judgement(row: Row) -> str:
    """Does a gated point lie above its base policy's frontier? By the 95 % intervals of steps and accuracy together."""
    low, high = zip(row["gained_ci"], *[] if row["beyond"] else [row["saved_ci"]], strict=True)
    better, worse = max(low) > 0, min(high) < 0
    return "helps" if better and not worse else "hurts" if worse and not better else "no clear difference"


def abstract(compared: Sequence[Row], diagnosed: Sequence[Row]) -> str:
    """In short: at how many points a gate helps, on which tasks; and what the signals know beyond confidence."""
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
            f"{', '.join(saved) or 'nowhere'}. The intervals are of one point each: of many, some miss by chance."
        )
    values = ", ".join(
        f"{name} " + "/".join(f"{(row['auc']['reference'][name] or [math.nan])[0]:.2f}" for row in diagnosed)
        for name in diagnosed[0]["auc"]["reference"]
    )  # fmt: skip
    lines.append(
        "- What a signal knows beyond confidence (AUC among proposals of like confidence, match with the reference "
        "answer; 0.5 is nothing, below 0.5 a warning; confidence itself shows what is left of it; "
        f"{'/'.join(row['task'] for row in diagnosed)}): {values}."
    )
    return "\n".join(lines)


def verdict(rows: Sequence[Row]) -> str:
    """One sentence for each gated point: where it helps and where not."""
    lines = []
    for row in (row for row in rows if "saved" in row):
        lines.append(
            f"- {row['task']}, {row['name']}: {judgement(row)}. Steps saved at equal accuracy {gain(row, 'saved')} %, "
            f"accuracy gained at equal steps {gain(row, 'gained')}"
            + ("; more accurate than every point of the frontier." if row["beyond"] else ".")
        )
    return "\n".join(lines)


def versus(rows: Sequence[Row]) -> list[Table]:
    """Every row of the comparison, a table a task."""
    columns = ("decoder", "accuracy %", "steps", "TPF", "n")
    return [
        Table(task, columns, tuple(
            (row["name"], accuracy(row), f"{row['steps']:.1f}", f"{row['tpf']:.2f}", str(row["n"]))
            for row in rows if row["task"] == task
        ))
        for task in dict.fromkeys(row["task"] for row in rows)
    ]  # fmt: skip


def _paired_table(rows: Sequence[Row], base: str) -> Table:
    """A line a row, with what it changes against the row named `base` on the same problems."""
    bases = {row["task"]: row for row in rows if row["name"] == base}
    lines = []
    for row in rows:
        mine = row | paired(row, bases[row["task"]])
        lines.append((
            row["task"], row["name"], accuracy(row), f"{row['steps']:.1f}", change(mine, "accuracy", 100),
            change(mine, "steps"),
        ))  # fmt: skip
    return Table("", ("task", "knobs", "accuracy %", "steps", "Δ accuracy", "Δ steps"), tuple(lines))


INTRODUCTION = """Every figure and table here is drawn from rows by `tacg report`; nothing is typed in. Knobs were tuned
on the dev split."""
COMPARISON = """Each gated policy was tuned on the dev split, three times: to lose nothing of the best dev accuracy, at
most two points, at most five. It is held against the frontier of its base policy on the same test problems: the
measured thresholds (where a gated point is slower than all of them, higher ones too), those that the gate itself was
tuned to (for KLASS also its own tuned knobs), and straight lines between them. The frontier is picked on the test
problems themselves, the gated points are not, which favours the baseline. Intervals resample problems."""
PARTS = """With the default knobs (tuned ones often switch a part off). HG only: no promotions. TILG only: no
persistence. Seconds are wall time, and other processes may have had their share of the cores."""
OTHERS = """TACG over confidence with the default knobs and one thing changed: where the authors' code departs from the
paper, and variants of our own (docs/concepts.md). Δ to the paper's gate, paired by problem."""
SIGNALS = """Every proposal of every step while one token a step is committed. AUC: among proposals of like confidence,
how often a right one has the higher value than a wrong one. Match is with the token of the reference answer, which on
tasks with free wording counts another good wording as wrong."""
MAPS = """Support weight against floor (the paper's Fig. 3), gate length against EMA decay (Fig. 4); dev split."""
LONGER = """The tuned knobs of the usual length, for answers of that length and of twice it (the paper's Table 4);
both policies tuned on the dev split."""
LABELS = """Knobs found by accuracy on the dev split, and by agreement with what one token a step writes on the same
prompts (half for words in common, half for the very same text), without looking at any answer. Both may lose five
points of the best, but of different measures. Δ to confidence with its default threshold."""
