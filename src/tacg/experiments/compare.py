"""Policies side by side on the same problems: one row each, with the gain over the base policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacg.engine.request import resolve
from tacg.experiments.grid import Cell, Sample, run, takes
from tacg.policies import Wrapper
from tacg.records.stats import aup
from tacg.records.summary import paired
from tacg.records.tables import Table, accuracy, change

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tacg.experiments.grid import Tick
    from tacg.llm import LLM
    from tacg.records.rows import Ledger, ResultRow
    from tacg.tasks import Task

DEFAULT_POLICIES = ("confidence", "tacg", "klass", "tacg+klass")
DIFFERENCES = ("Δ accuracy", "p", "Δ steps")
COLUMNS = (
    "policy",
    "accuracy %",
    "tokens %",
    "valid %",
    "steps",
    "TPF",
    "total TPF",
    "forwards",
    "s",
    "AUP",
    *DIFFERENCES,
)


def compare(
    llm: LLM, tasks: Sequence[Task], policies: Sequence[str], sample: Sample,
    settings: Mapping[str, Any] | None = None, ledger: Ledger | None = None, tick: Tick | None = None,
) -> list[ResultRow]:  # fmt: skip
    """Evaluate every policy on every task; a gated policy is paired with the one it wraps, if that is included."""
    cells = [
        Cell(task, spec, mine := takes(spec, settings or {}), tags={"over": _wrapped(spec, mine)})
        for task in tasks for spec in policies
    ]  # fmt: skip
    rows = run(llm, cells, sample, ledger, tick)
    return [row for task in tasks for row in _with_base([row for row in rows if row["task"] == task.name])]


def _wrapped(spec: str, settings: Mapping[str, Any]) -> str | None:
    """The base policy of a gated one, with its knobs."""
    policy, _ = resolve(spec, dict(settings))
    return policy.base.label if isinstance(policy, Wrapper) else None


def _with_base(rows: Sequence[ResultRow]) -> Iterator[ResultRow]:
    """The rows of one task, with their difference from the base policy and their accuracy under parallelism.

    AUP is computed from one token per step to this row, so `schedule` must be among the policies. The base policy must
    have exactly the same knobs as the one inside the gate.
    """
    runs = {row["name"]: row for row in rows}
    best, careful = max(row["accuracy"] for row in rows), runs.get("schedule")
    for row in rows:
        base = next((each for each in rows if each["policy"] == row["over"]), None)
        change = {"base": None} if base is None else paired(row, base)
        if careful is not None:
            points = {(each["tpf"], 100 * each["accuracy"]) for each in (careful, row)}
            change |= {"aup": aup(sorted(points), best=100 * best)}
        yield {**row, **change}


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One table per task; differences only if there is a base policy, other columns only if they are known."""
    known, graded = any("aup" in row for row in rows), any("valid" in row for row in rows)
    compared = any(row.get("base") for row in rows)
    hidden = {*["AUP"] * (not known), *["tokens %", "valid %"] * (not graded), *DIFFERENCES * (not compared)}
    made = []
    for task in dict.fromkeys(row["task"] for row in rows):
        lines = [
            (
                row["policy"], accuracy(row),
                *([f"{100 * row[name]:.1f}" for name in ("score", "valid") if "valid" in row] or ["", ""]) * graded,
                f"{row['steps']:.{2 if graded else 1}f}", f"{row['tpf']:.2f}", f"{row['tpf_ratio']:.2f}",
                str(row["forwards"]), f"{row['seconds']:.1f}",
                *[f"{row['aup']:.0f}" if "aup" in row else ""] * known,
                *(change(row, "accuracy", 100), f"{row['mcnemar_p']:.2g}" if row.get("base") else "",
                  change(row, "steps")) * compared,
            )
            for row in rows if row["task"] == task
        ]  # fmt: skip
        made.append(Table(task, tuple(name for name in COLUMNS if name not in hidden), tuple(lines)))
    return made
