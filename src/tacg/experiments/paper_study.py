"""Every experiment of the paper on one model: the rows from which `paper_report.py` writes its report.

Knobs are tuned on the dev split, where sensitivity and signals are measured too; everything else uses test problems.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tacg.engine.request import resolve
from tacg.experiments import ablate, diagnose, sweep, tune
from tacg.experiments.evaluate import lengths_for
from tacg.experiments.frontier import over_frontiers
from tacg.experiments.grid import Cell, Sample, run, takes
from tacg.policies.base import Wrapper
from tacg.records.rows import Ledger, ResultRow
from tacg.records.stats import front

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tacg.llm import LLM
    from tacg.tasks import Task

GATED = {"tacg": "confidence", "tacg+klass": "klass"}
GIVES = (0.0, 0.02, 0.05)  # how much of the best dev accuracy a tuned point may lose
ALWAYS = 0.9995  # a threshold this high is practically one token per step
# Starting points of tuning, besides the defaults at every threshold: the History Gate alone, found on dev problems.
STARTS: tuple[dict[str, Any], ...] = tuple(
    {"threshold": threshold, "tau_escape": escape, "m_base": persist, "k_extra": 0, "observe": scope}
    for scope in ("block", "sequence")
    for threshold, escape, persist in ((0.7, 0.95, 2), (0.8, 0.98, 2), (0.8, 0.98, 3), (0.95, 0.995, 3))
)
# The rows that others are paired with: for variants of the gate, and for tuning with and without labels.
AS_PUBLISHED, UNTUNED = "the paper's", "confidence, defaults"
# One departure at a time: where the authors' code differs, and our own ideas.
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
    """Numbers of problems: in the comparison (`test`), in the other tables (`part`), per point of a map (`point`), per
    trial of a search (`trial`), and in the second evaluation of TACG's best points (`again`; half for other policies).
    `trials`: settings searched beyond the known ones (half for KLASS).
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
        """Just enough to check that everything works."""
        return cls(test=6, part=4, point=3, trials=2, trial=4, again=4, thresholds=(0.5, 0.9))


@dataclass
class Study:
    """The experiments on some tasks. Rows go to one file under `home`; a restarted study continues from it."""

    llm: LLM
    tasks: Sequence[Task]
    scale: Scale
    home: Path
    bar: Callable[[str, int], Any]  # opens a progress bar with a title and a number of problems
    seed: int = 0
    batch_size: int = 32
    settings: Mapping[str, Any] = field(default_factory=dict)  # of every run, such as the cache
    trials: dict[str, list[ResultRow]] = field(default_factory=dict)

    @functools.cached_property
    def ledger(self) -> Ledger:
        """All rows."""
        return Ledger(self.home / "rows.jsonl")

    def sample(self, n: int, split: str = "test") -> Sample:
        """The first `n` problems of a split."""
        return Sample(n, self.seed, split, self.batch_size, settings=self.settings)

    def run(self, title: str, cells: Sequence[Cell], n: int, split: str = "test") -> list[ResultRow]:
        """Evaluate cells under one progress bar."""
        with self.bar(title, n * len(cells)) as tick:
            return run(self.llm, cells, self.sample(n, split), self.ledger, tick)

    # -- tuning, on the dev split ----------------------------------------------------------------------------------

    def tuned(self, task: Task, policy: str, *, labels: bool = True) -> list[ResultRow]:
        """The Pareto front of a search, evaluated again on more problems to expose points that were best by chance."""
        title = f"{task.name} · tuning {policy}" + ("" if labels else " without labels")
        if title not in self.trials:
            scale, space = self.scale, tune.space_of(policy)
            start = tune.defaults(policy, space)
            every = 2 if "klass" in policy else 1  # it takes twice as many steps
            first = [start, *(start | {"threshold": threshold} for threshold in scale.thresholds[::every])]
            first += [start | known for known in STARTS[::every] if known.keys() <= space.keys()]
            first = [each for number, each in enumerate(first) if each not in first[:number]]
            trials = len(first) + (scale.trials // every if len(space) > 1 else 0)
            with self.bar(title, trials * scale.trial) as tick:
                judge = self.judge(task, policy, labels, scale.trial, tick)
                rows = tune.tune(judge, space, trials, self.seed, first)
            best = front(rows)
            more = scale.again if policy == "tacg" else scale.again // 2
            with self.bar(f"{title}, second look", more * len(best)) as tick:
                judge = self.judge(task, policy, labels, more, tick)
                again = [judge(row["settings"], "again") | {"settings": row["settings"]} for row in best]
            self.trials[title] = again
        return self.trials[title]

    def judge(self, task: Task, policy: str, labels: bool, n: int, tick: Any) -> tune.Judge:
        """A judge by accuracy, or by agreement with one token per step."""
        if labels:
            return tune.by_labels(self.llm, task, policy, self.sample(n, "dev"), self.ledger, tick)
        prompts = [problem.asked for problem in task.problems("dev", n, self.seed)]
        decode = {**lengths_for(self.llm, task.decode), **takes(policy, self.settings)}
        return tune.by_agreement(self.llm, prompts, policy, decode, self.ledger, tick, self.batch_size)

    def points(self, task: Task, policy: str) -> dict[float, dict[str, Any]]:
        """Tuned settings from careful to fast, by the accuracy they may lose; also written as presets."""
        settings = {}
        for give in GIVES:
            chosen = tune.choose(self.tuned(task, policy), give)
            about = f"{task.name}, dev quality {chosen['quality']:.3f}, {chosen['steps']:.1f} steps, may lose {give}"
            tune.write_preset(self.preset(task, policy, give), policy, chosen["settings"], about)
            settings[give] = chosen["settings"]
        return settings

    def preset(self, task: Task, policy: str, give: float) -> Path:
        """The preset file of a tuned point."""
        return self.home / f"{task.name}.{policy}.{give}.toml"

    # -- the comparison, on the test split -------------------------------------------------------------------------

    @functools.cached_property
    def compared(self) -> list[ResultRow]:
        """Rows of base policies and tuned gates, the latter with their gain over the base policy's frontier."""
        rows: list[ResultRow] = []
        for policy, base in GATED.items():
            n = self.scale.test if base == "confidence" else self.scale.part
            cells = [cell for task in self.tasks for cell in self.rivals(task, policy, base)]
            mine = self.run(f"comparison over {base}", cells, n)
            for task in self.tasks:
                mine += self.slower(task, base, [row for row in mine if row["task"] == task.name], n)
            rows += sorted(mine, key=lambda row: bool(row["spec"] in GATED))
        return over_frontiers(rows, GATED)

    def slower(self, task: Task, base: str, rows: Sequence[ResultRow], n: int) -> list[ResultRow]:
        """Extend the base policy's frontier with higher thresholds until it is as slow as the slowest gated point."""
        more: list[ResultRow] = []
        slowest = max(row["steps"] for row in rows)
        threshold = max(self.scale.thresholds)
        while max(row["steps"] for row in (*rows, *more) if row["spec"] == base) < slowest and threshold < ALWAYS:
            threshold = round(1 - (1 - threshold) / 2, 5)
            more += self.run(f"{base} {threshold}", [self.cell(task, base, {"threshold": threshold})], n)
        return more

    def cell(self, task: Task, spec: str, knobs: dict[str, Any], name: str = "") -> Cell:
        """A point of the comparison."""
        tags = {"spec": spec, "x_name": "the threshold or tuned knobs"}
        return Cell(task, spec, knobs, name or f"{spec} {knobs['threshold']}", tags)

    def rivals(self, task: Task, policy: str, base: str) -> Iterator[Cell]:
        """The frontier of a base policy and the tuned points of a gate over it, without duplicates.

        The base policy gets every setting that the gate found for it, so a gate that does nothing is on the frontier.
        """
        points, plain = self.points(task, policy), base == "confidence"
        known: list[tuple[str, str, dict[str, Any]]] = [
            (base, f"{base} {each}", {"threshold": each}) for each in self.scale.thresholds[:: 1 if plain else 2]
        ]
        if not plain:  # it has more knobs than a threshold
            known += [(base, f"{base}, tuned", knobs) for knobs in self.points(task, base).values()]
        for knobs in points.values():
            gate, decode = resolve(policy, knobs)
            assert isinstance(gate, Wrapper)
            own = gate.base.values() | ({} if plain else {"observe": decode.observe})
            known.append((base, f"{base} {own['threshold']}" + ", as in the gate" * (not plain), own))
        for knobs in points.values():
            gives = ", ".join(f"{100 * give:.0f}" for give, same in points.items() if same == knobs)
            known.append((policy, f"{policy}, tuned, may lose {gives}", knobs))
        seen = []
        for spec, name, knobs in known:
            if (rule := resolve(spec, knobs)) not in seen:
                seen.append(rule)
                yield self.cell(task, spec, knobs, name)

    # -- the rest --------------------------------------------------------------------------------------------------

    def parts(self) -> list[ResultRow]:
        """Table 3, Fig. 5 and Table 5: what each part of the gate does."""
        with self.bar("parts", 4 * len(GATED) * len(self.tasks) * self.scale.part) as tick:
            sample = self.sample(self.scale.part)
            return ablate.ablate(self.llm, self.tasks, list(GATED), sample, ledger=self.ledger, tick=tick)

    def maps(self) -> dict[str, list[ResultRow]]:
        """Figs. 3 and 4 on the dev split, by name."""
        maps = {}
        for name, x, y in (
            ("fig3", ("support_lambda", (0.0, 0.05, 0.5, 2.0)), ("tau_floor", (0.5, 0.7, 0.9))),
            ("fig4", ("m_base+m_extra", (1, 2, 3, 4)), ("beta", (0.0, 0.5, 0.95))),
        ):
            across, up = (sweep.Axis(tuple(knobs.split("+")), values) for knobs, values in (x, y))
            points = len(across.values) * len(up.values) * len(self.tasks)
            with self.bar(f"map {name}", points * self.scale.point) as tick:
                sample = self.sample(self.scale.point, "dev")
                maps[name] = sweep.sweep(self.llm, self.tasks, ["tacg"], across, up, sample, None, self.ledger, tick)
        return maps

    @functools.cached_property
    def diagnosed(self) -> list[ResultRow]:
        """How much each signal tells, one row per task."""
        with self.bar("signals", self.scale.point * len(self.tasks)) as tick:
            sample = self.sample(self.scale.point, "dev")
            settings = takes("schedule", self.settings)
            return diagnose.diagnose(self.llm, self.tasks, "schedule", sample, self.ledger, tick, settings)

    def variants(self) -> list[ResultRow]:
        """Departures from the paper's gate, one at a time."""
        known: dict[str, dict[str, Any]] = {AS_PUBLISHED: {}} | VARIANTS
        cells = [Cell(task, "tacg", knobs, name) for task in self.tasks for name, knobs in known.items()]
        return self.run("variants", cells, self.scale.part)

    def longer(self) -> list[ResultRow]:
        """Table 4: answers twice as long, with the knobs tuned for the usual length."""
        cells = []
        for task in self.tasks:
            knobs = {policy: self.points(task, policy)[GIVES[-1]] for policy in ("confidence", "tacg")}
            for times in (1, 2):
                length = {"gen_length": times * task.decode["gen_length"]}
                tags = {"length": length["gen_length"]}
                cells += [Cell(task, policy, mine | length, policy, tags) for policy, mine in knobs.items()]
        return self.run("twice the length", cells, self.scale.part)

    def labels(self) -> list[ResultRow]:
        """Tuning without labels next to tuning with them, both measured on test problems."""
        cells = []
        for task in self.tasks:
            blind = tune.choose(self.tuned(task, "tacg", labels=False), GIVES[-1])["settings"]
            cells.append(Cell(task, "confidence", {}, UNTUNED))
            cells.append(Cell(task, "tacg", {}, "tacg, defaults"))
            cells.append(Cell(task, "tacg", self.points(task, "tacg")[GIVES[-1]], "tacg, tuned with labels"))
            cells.append(Cell(task, "tacg", blind, "tacg, tuned without labels"))
        return self.run("tuning compared", cells, self.scale.part)
