"""Many evaluations in sequence, each a named cell; finished cells are not repeated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tacg.engine.request import Decode, resolve
from tacg.experiments.evaluate import evaluate, identity_for, settings_of
from tacg.policies import get_policy
from tacg.records.rows import Ledger, ResultRow, key_of
from tacg.records.summary import by_item
from tacg.shapes import COUNT, Number
from tacg.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tacg.llm import LLM
    from tacg.policies import Policy
    from tacg.tasks import Task


class Tick(Protocol):
    """Called with the name of a cell and whether an item was right; `known`: it was decoded in an earlier run."""

    def __call__(self, part: str, correct: bool, *, known: bool = False) -> None:
        """One more item."""


SHARE, AMOUNT = Number(0, 1), Number(0)
# The shape of a run's row that tables and plots need.
SHAPE = {
    "task": str, "model": str, "policy": str, "n": Number(1, whole=True), "seed": COUNT, "accuracy": SHARE,
    "accuracy_ci": (SHARE, SHARE), "score": SHARE, "steps": AMOUNT, "tpf": AMOUNT, "tpf_ratio": AMOUNT,
    "forwards": COUNT, "seconds": AMOUNT, "tokens_per_second": AMOUNT, "split": str, "settings": dict, "dtype": str,
    "correct": str, "item_steps": [COUNT], "commits_by_step": [Number()], "accuracy_strict?": SHARE, "valid?": SHARE,
    "positions?": COUNT, "item_positions?": [COUNT], "tokens_per_position?": AMOUNT, "auxiliary_forwards?": COUNT,
    "item_forwards?": [COUNT], "item_scores?": [SHARE], "processor_seconds?": AMOUNT,
    "tokens_per_processor_second?": AMOUNT,
}  # fmt: skip


def impossible(row: ResultRow) -> str:
    """Describe what is inconsistent in a row of that shape, or return an empty text."""
    right, n = row["correct"], row["n"]
    if {*right} <= {"0", "1"} and len(right) == len(row["item_steps"]) == n:
        return ""
    return f"`correct` must be {n} zeros and ones, and `item_steps` {n} numbers, one for each problem"


@dataclass(frozen=True)
class Cell:
    """A policy on a task. `name` is shown in tables, `tags` are columns that the experiment adds to the row."""

    task: Task
    policy: str | Policy
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    tags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """Which problems are decoded, and how: `n` of a split with a seed, after the first `skip`, `batch_size` at a time.

    settings  for every cell whose policy or decode has them, such as the cache; a cell's own settings override them
    """

    n: int
    seed: int = 0
    split: str = "test"
    batch_size: int = 32
    skip: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def settings_for(self, cell: Cell) -> dict[str, Any]:
        """The settings of a cell in this sample."""
        return {**takes(cell.policy, self.settings), **cell.settings}


def takes(spec: str | Policy, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the decode or this policy has; a comparison applies each setting wherever it exists."""
    known = {"suppress", *Decode().knobs(), *get_policy(spec).knobs()}
    return {name: value for name, value in settings.items() if name in known}


def cell_key(llm: LLM, cell: Cell, sample: Sample) -> str:
    """A short hash of everything that the row of a cell depends on."""
    policy, decode = resolve(cell.policy, settings_of(cell.task, cell.policy, sample.settings_for(cell), llm))
    return key_of(
        task=repr(cell.task), policy=repr(policy), decode=repr(decode), model=identity_for(llm, policy),
        version=__version__, n=sample.n, seed=sample.seed, split=sample.split,
        **({"skip": sample.skip} if sample.skip else {}),
    )  # fmt: skip


def run(
    llm: LLM, cells: Iterable[Cell], sample: Sample, ledger: Ledger | None = None, tick: Tick | None = None
) -> list[ResultRow]:
    """One row per cell, in order. `tick` is called with each cell's name and correctness, item by item."""
    ledger = ledger or Ledger()
    weights = llm.identity["weights"]
    rows = []
    for cell in cells:
        name = cell.name or (cell.policy if isinstance(cell.policy, str) else cell.policy.label)
        title, key = f"{cell.task.name} · {name}", cell_key(llm, cell, sample)
        row = ledger.get(key, SHAPE, impossible)
        if row is None:
            begun = ledger.path and ledger.path.parent / "begun" / f"{key}.jsonl"  # items of an unfinished cell
            evaluation = evaluate(
                llm, cell.task, cell.policy, n=sample.n, seed=sample.seed, split=sample.split, skip=sample.skip,
                batch_size=sample.batch_size, settings=sample.settings_for(cell), out=begun, resume=True,
                **_told(tick, title),
            )  # fmt: skip
            row = ledger.add(key, evaluation.row | by_item(evaluation.items) | {"weights": weights})
            if begun:
                begun.unlink(missing_ok=True)
        elif tick is not None:
            for mark in row["correct"]:
                tick(title, mark == "1", known=True)
        rows.append({**row, "name": name, **cell.tags})
    return rows


def _told(tick: Tick | None, title: str) -> dict[str, Any]:
    """The callbacks of `evaluate` that pass items on to `tick`."""
    if tick is None:
        return {}
    return {
        "on_item": lambda item: tick(title, item.correct),
        "on_known": lambda item: tick(title, item.correct, known=True),
    }
