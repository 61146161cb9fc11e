"""The paper's tables and figures: their runs (`paper.toml`), the published numbers, and ours next to them.

Every run is a results file. Tables share runs, and finished items are not decoded again.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from itertools import product
from typing import TYPE_CHECKING, Any

from tacg.engine.request import resolve
from tacg.errors import TacgError, unknown
from tacg.experiments.ablate import PARTS
from tacg.experiments.evaluate import evaluate, settings_of
from tacg.experiments.grid import takes
from tacg.records.summary import by_item
from tacg.records.tables import Table, accuracy
from tacg.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tacg.experiments.evaluate import Decoder
    from tacg.records.rows import ResultRow
    from tacg.tasks import Task

NAMES = ("table1", "table2", "table3", "table4", "table5", "figures")


@dataclass(frozen=True)
class PaperRun:
    """One run of the paper and its published numbers; None where nothing was published."""

    model: str
    task: str
    policy: str
    part: str = ""
    gen_length: int | None = None
    knobs: tuple[tuple[str, Any], ...] = ()
    accuracy: float | None = None
    steps: float | None = None
    tpf: float | None = None


@functools.cache
def paper() -> dict[str, Any]:
    """The content of `paper.toml`."""
    text = resources.files("tacg.experiments").joinpath("paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def runs_of(name: str) -> list[PaperRun]:
    """The runs of a table, or of the figures that need runs."""
    if name not in NAMES:
        raise unknown("table", name, NAMES)
    if name == "figures":
        return [*_lines("table3")[:4], *(line for figure in ("fig3", "fig4") for line in grid_of(figure))]
    return _lines("table1" if name == "table5" else name)


def _lines(table: str) -> list[PaperRun]:
    return [PaperRun(**row) for row in paper()["tables"][table]]


def grid_of(figure: str) -> list[PaperRun]:
    """The runs of Fig. 3 or 4: every pair of values of two axes; `a+b` varies two knobs together."""
    facts = paper()["figures"]
    (x, xs), (y, ys) = facts[figure].items()
    return [
        PaperRun(facts["model"], facts["task"], facts["policy"], knobs=(*((name, a) for name in x.split("+")), (y, b)))
        for a, b in product(xs, ys)
    ]


@dataclass(frozen=True)
class Stage:
    """How the runs are carried out.

    rehearsal  a built-in model that replaces all of the paper's models, on pocket tasks; empty: the real models
    released   use the gate of the authors' code instead of the paper's
    n          maximum number of problems per run; None: all
    data       files of the datasets, by task; the others are downloaded
    knobs      knobs of tasks, by task; they override the paper's
    extra      settings of every run whose policy or decode has them, such as the cache
    """

    rehearsal: str = ""
    released: bool = False
    n: int | None = None
    seed: int = 0
    data: Mapping[str, str] = field(default_factory=dict)
    knobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def policy(self, line: PaperRun) -> str:
        """The policy with its published settings."""
        name, base = line.policy.partition("+")[::2]
        if name == "tacg" and self.released:
            name = _released(line.model, line.task, base)
        known = "any" if line.model == "llada2-mini" else line.task
        return f"{name}+{base}:{line.model}/{known}" if base else f"{name}:{line.model}/{known}"

    def task(self, line: PaperRun) -> Task:
        """The task, or its replacement in a rehearsal."""
        if self.rehearsal:
            name = paper()["rehearsal"][line.task]
            return get_task(name, **self.knobs.get(name, {}))
        knobs = paper()["knobs"].get(line.model, {}).get(line.task, {})
        data = {"data": self.data[line.task]} if line.task in self.data else {}
        return get_task(line.task, **{**knobs, **self.knobs.get(line.task, {}), **data})

    def items(self, line: PaperRun) -> int:
        """How many problems the run has."""
        counts = paper()["items"]
        whole: int = counts.get(line.model, {}).get(line.task, counts[line.task])
        return whole if self.n is None else min(whole, self.n)

    def settings(self, line: PaperRun) -> dict[str, Any]:
        """The run's changes to the published settings. A rehearsal keeps the proportions of lengths."""
        changed = {**PARTS.get(line.part, {}), **dict(line.knobs)}
        if self.released and "m_base" in changed:  # the released rules have one knob for both
            changed = {name: value for name, value in changed.items() if name != "m_extra"}
            changed["m"] = changed.pop("m_base")
        if line.gen_length is not None:
            length = line.gen_length
            if self.rehearsal:
                usual = resolve(self.policy(line), {})[1].gen_length
                length = self.task(line).decode["gen_length"] * length // usual
            changed["gen_length"] = length
        return {**changed, **takes(self.policy(line), self.extra)}

    def forwards(self, line: PaperRun) -> int:
        """The approximate number of model calls, from the published steps or TPF."""
        known = line if line.tpf else next(each for each in _lines("table1") if _same_run(each, line))
        if known.steps is not None and not self.rehearsal:
            return round(self.items(line) * known.steps)
        spec = self.policy(line)
        length: int = settings_of(self.task(line), spec, self.settings(line))["gen_length"]
        return round(self.items(line) * length / (known.tpf or 1.0))

    def file(self, line: PaperRun) -> str:
        """The name of its results file; equal runs of two tables share it."""
        asked = self.knobs.get(self.task(line).name, {})
        changed = [f"{name}={value}" for name, value in (*sorted(self.settings(line).items()), *sorted(asked.items()))]
        return ".".join([line.model, line.task, self.policy(line).partition(":")[0], *changed]) + ".jsonl"


def _same_run(one: PaperRun, other: PaperRun) -> bool:
    return (one.model, one.task, one.policy) == (other.model, other.task, other.policy)


def _released(model: str, task: str, base: str) -> str:
    """Which of the released rules the authors ran."""
    if model == "llada":
        return "tacg-released"
    if model == "dream":
        return "tacg-released-dream-ema" if (base, task) == ("klass", "humaneval") else "tacg-released-dream"
    raise TacgError(f"The code for {model} was not released; leave out --released, or table2.")


def play(
    lines: Sequence[PaperRun], stage: Stage, load: Callable[[str], Decoder], home: Path, batch_size: int = 32,
    tick: Callable[..., None] | None = None,
) -> list[ResultRow]:  # fmt: skip
    """One row per run, in order; `load` loads the models one after the other, by the paper's name.

    `tick` is called with a title, the item, and whether it is `known` from an earlier run.
    """
    rows: dict[int, ResultRow] = {}
    for model in dict.fromkeys(line.model for line in lines):
        llm = load(model)
        for number, line in enumerate(lines):
            if line.model == model:
                rows[number] = _play_one(llm, line, stage, home, batch_size, tick)
    return [rows[number] for number in range(len(lines))]


def _play_one(
    llm: Decoder, line: PaperRun, stage: Stage, home: Path, batch_size: int, tick: Callable[..., None] | None
) -> ResultRow:
    title = f"{line.model} · {line.task} · {line.policy}" + (f" · {line.part}" if line.part else "")
    made = evaluate(
        llm, stage.task(line), stage.policy(line), n=stage.items(line), seed=stage.seed, batch_size=batch_size,
        settings=stage.settings(line), out=home / stage.file(line), resume=True,
        on_item=(lambda item: tick(title, item, known=False)) if tick is not None else None,
        on_known=(lambda item: tick(title, item, known=True)) if tick is not None else None,
    )  # fmt: skip
    whole = len(made.items) == Stage().items(line)
    return made.row | by_item(made.items) | {"line": line, "whole": whole, "rehearsal": bool(stage.rehearsal)}


# -- what is shown ----------------------------------------------------------------------------------------------------

PLAN = ("run", "set", "problems", "gen", "published %", "steps", "TPF", "forwards", "done")
COLUMNS = ("run", "set", "n", "accuracy %", "strict %", "paper %", "Δ items", "steps", "paper", "TPF", "paper")


def plan(name: str, stage: Stage, home: Path) -> Table:
    """What a table would take: runs, problems, forwards, and how much of it is done."""
    body, runs = [], {stage.file(line): line for line in runs_of(name)}
    for file, line in runs.items():
        gen = settings_of(stage.task(line), stage.policy(line), stage.settings(line))["gen_length"]
        path, items = home / file, stage.items(line)
        done = max(0, len(path.read_bytes().splitlines()) - 1) if path.is_file() else 0
        body.append((
            _name(line), stage.task(line).name, str(items), str(gen), _shown(line.accuracy), _shown(line.steps),
            _shown(line.tpf), f"{stage.forwards(line):,}", f"{done}" if done else "",
        ))  # fmt: skip
    items, forwards = (sum(count(line) for line in runs.values()) for count in (stage.items, stage.forwards))
    body.append((f"{len(runs)} runs", "", f"{items:,}", "", "", "", "", f"{forwards:,}", ""))
    return Table(name, PLAN, tuple(body))


def tables(name: str, rows: Sequence[ResultRow]) -> list[Table]:
    """The paper's numbers next to ours; differences are counted in problems, if model and problems are the paper's."""
    if name == "table5":
        return [_steps_table(rows)]
    lines = []
    for row in rows:
        line: PaperRun = row["line"]
        ours = row[paper()["models"][line.model]["tpf"]]
        lines.append((
            _name(line), row["task"], str(row["n"]), accuracy(row), _shown(row.get("accuracy_strict"), 100),
            _shown(line.accuracy), _items(row), f"{row['steps']:.2f}", _shown(line.steps), f"{ours:.2f}",
            _shown(line.tpf),
        ))  # fmt: skip
    return [Table(name, COLUMNS, tuple(lines))]


def _steps_table(rows: Sequence[ResultRow]) -> Table:
    """The paper's Table 5: steps of a decoder and of TACG over it."""
    steps = {(row["line"].model, row["line"].task, row["line"].policy): row for row in rows}
    lines = []
    for (model, task, policy), row in steps.items():
        gated = steps.get((model, task, "tacg" if policy == "confidence" else f"tacg+{policy}"))
        if gated is None:
            continue
        pairs = [(row["steps"], gated["steps"]), (row["line"].steps, gated["line"].steps)]
        changes = [f"{100 * (after - before) / before:+.2f}" for before, after in pairs]
        words = [
            word for pair, change in zip(pairs, changes, strict=True) for word in (*(f"{x:.2f}" for x in pair), change)
        ]
        lines.append((f"{model} · {task}", policy, *words))
    columns = ("run", "over", "steps", "with TACG", "Δ %", "paper", "with TACG", "Δ %")
    return Table("table5", columns, tuple(lines))


def _items(row: ResultRow) -> str:
    """The difference from the published result in problems, by the released grading where there is one."""
    published = row["line"].accuracy
    if row["rehearsal"] or published is None:
        return ""
    more = row["n"] * (row.get("accuracy_strict", row["accuracy"]) - published / 100)
    return f"{round(more):+d}" if row["whole"] else f"{more:+.1f}"


def _name(line: PaperRun) -> str:
    words = [line.model, line.task, line.policy, line.part, *(f"{name}={value}" for name, value in line.knobs)]
    return " · ".join(word for word in words if word) + (f" · {line.gen_length}" if line.gen_length else "")


def _shown(value: float | None, scale: float = 1.0) -> str:
    return "" if value is None else f"{scale * value:.2f}"


def heat_rows(figure: str, rows: Sequence[ResultRow]) -> list[ResultRow]:
    """The rows of Fig. 3 or 4, for `draw_heat`."""
    x, y = paper()["figures"][figure]
    wanted = grid_of(figure)
    return [
        row | {"x": row["line"].knobs[0][1], "y": row["line"].knobs[-1][1], "x_name": x, "y_name": y, "spec": "tacg"}
        for row in rows if row["line"] in wanted
    ]  # fmt: skip


def pace_rows(rows: Sequence[ResultRow]) -> Iterator[ResultRow]:
    """The rows of Fig. 5, for `draw_dynamics`."""
    for row in rows:
        line = row["line"]
        if not line.knobs:
            name = "baseline" if line.policy == "confidence" else line.part or "TACG"
            yield row | {"gate": "tacg", "over": "confidence", "name": name}
