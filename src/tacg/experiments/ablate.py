"""The paper's Table 3, with Fig. 5 and Table 5 from the same rows: what each part of the gate does on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacg.engine.request import resolve
from tacg.errors import TacgError
from tacg.experiments.evaluate import settings_of
from tacg.experiments.grid import Cell, Sample, run, takes
from tacg.policies import Wrapper
from tacg.records.summary import paired
from tacg.records.tables import Table, accuracy, change

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tacg.experiments.grid import Tick
    from tacg.llm import LLM
    from tacg.records.rows import Ledger, ResultRow
    from tacg.tasks import Task

PARTS: dict[str, dict[str, int]] = {"HG only": {"k_extra": 0}, "TILG only": {"m_base": 1, "m_extra": 1}, "TACG": {}}
COLUMNS = ("over", "part", "accuracy %", "steps", "TPF", "s", "Δ accuracy", "Δ steps", "Δ steps %")


def ablate(
    llm: LLM, tasks: Sequence[Task], gates: Sequence[str], sample: Sample, settings: Mapping[str, Any] | None = None,
    ledger: Ledger | None = None, tick: Tick | None = None,
) -> list[ResultRow]:  # fmt: skip
    """Rows of the base policy, the History Gate alone, temporal support alone, and both, paired with the base.

    gates are gated policies: "tacg", "tacg+klass", optionally with a preset; each determines its base policy.
    """
    cells = [cell for task in tasks for gate in gates for cell in _cells(llm, task, gate, takes(gate, settings or {}))]
    rows = run(llm, cells, sample, ledger, tick)
    bases = {(row["task"], row["gate"]): row for row in rows if row["name"] == "baseline"}
    return [row | paired(row, bases[row["task"], row["gate"]]) for row in rows]


def _cells(llm: LLM, task: Task, gate: str, settings: Mapping[str, Any]) -> Iterator[Cell]:
    """The base policy of a gate with its knobs, then the gate's parts, all with the same decode settings."""
    policy, decode = resolve(gate, settings_of(task, gate, settings, llm))
    if not isinstance(policy, Wrapper):
        raise TacgError(f"`tacg ablate` needs a gated policy, such as tacg or tacg+klass; {gate!r} is not one.")
    same = {**decode.values(), "suppress": decode.suppress}
    tags = {"gate": gate, "over": policy.base.label}
    yield Cell(task, policy.base.name, same | policy.base.values(), "baseline", tags)
    for part, off in PARTS.items():
        yield Cell(task, gate, {**same, **settings, **off}, part, tags)


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One table per task."""
    made = []
    for task in dict.fromkeys(row["task"] for row in rows):
        lines = []
        for row in (row for row in rows if row["task"] == task):
            share = ""
            if row.get("base"):
                share = f"{100 * row['steps_diff'] / (row['steps'] - row['steps_diff']):+.1f}"
            lines.append((
                row["over"], row["name"], accuracy(row), f"{row['steps']:.1f}", f"{row['tpf']:.2f}",
                f"{row['seconds']:.1f}", change(row, "accuracy", 100), change(row, "steps"), share,
            ))  # fmt: skip
        made.append(Table(task, COLUMNS, tuple(lines)))
    return made
