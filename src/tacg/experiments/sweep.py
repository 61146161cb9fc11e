"""Any knobs over any values: two axes give heat maps (the paper's Figs. 3 and 4), one gives a frontier per policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacg.experiments.frontier import over_frontiers
from tacg.experiments.grid import Cell, Sample, run, takes
from tacg.policies import get_policy
from tacg.policies.base import Wrapper
from tacg.records.tables import Table, accuracy, gain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tacg.experiments.grid import Tick
    from tacg.llm import LLM
    from tacg.records.rows import Ledger, ResultRow
    from tacg.tasks import Task


@dataclass(frozen=True)
class Axis:
    """Knobs that change together, and their values."""

    knobs: tuple[str, ...]
    values: tuple[Any, ...]

    @property
    def label(self) -> str:
        """The knobs as the user wrote them."""
        return "+".join(self.knobs)

    def at(self, value: Any) -> dict[str, Any]:
        """The settings of one value."""
        return dict.fromkeys(self.knobs, value)


def sweep(
    llm: LLM, tasks: Sequence[Task], policies: Sequence[str], x: Axis, y: Axis | None, sample: Sample,
    settings: Mapping[str, Any] | None = None, ledger: Ledger | None = None, tick: Tick | None = None,
) -> list[ResultRow]:  # fmt: skip
    """One row for every task, policy and pair of values; `x` and `y` are columns of the rows.

    With one axis, rows of a gated policy get their gain over the base policy's frontier, if that is included too.
    """
    cells = []
    for task in tasks:
        for policy in policies:
            for first in x.values:
                for second in y.values if y else (None,):
                    point = {**(settings or {}), **x.at(first), **(y.at(second) if y else {})}
                    tags = {"x": first, "y": second, "x_name": x.label, "y_name": y.label if y else None}
                    name = f"{policy} {x.label}={first}" + (f" {y.label}={second}" if y else "")
                    cells.append(Cell(task, policy, takes(policy, point), name, {**tags, "spec": policy}))
    rows = run(llm, cells, sample, ledger, tick)
    made = {policy: get_policy(policy) for policy in policies}
    bases = {policy: each.base.name for policy, each in made.items() if isinstance(each, Wrapper)}
    return rows if y else over_frontiers(rows, bases)


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One table per task: every point, the most accurate first, with its gain over a frontier if that is known."""
    gains = {"saved": "steps saved %", "gained": "accuracy gained"} if any("saved" in row for row in rows) else {}
    made = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = sorted((row for row in rows if row["task"] == task), key=lambda row: (-row["accuracy"], row["steps"]))
        lines = [
            (
                row["name"],
                accuracy(row),
                f"{row['steps']:.1f}",
                f"{row['tpf']:.2f}",
                *(gain(row, name) for name in gains),
            )
            for row in mine
        ]
        made.append(Table(task, ("point", "accuracy %", "steps", "TPF", *gains.values()), tuple(lines)))
    return made
