"""Many evaluations, one after the other: each a cell with a name; what was done before is not done again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from tacg.engine.request import resolve
from tacg.experiments.evaluate import evaluate, settings_of
from tacg.experiments.rows import Ledger, Row, key_of
from tacg.experiments.stats import mcnemar, paired_bootstrap
from tacg.shapes import COUNT, Number
from tacg.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tacg.experiments.results import Item
    from tacg.llm import LLM
    from tacg.tasks import Task

Tick = Callable[[str, bool], None]  # told the name of a cell and whether an item was right

SHARE, AMOUNT = Number(0, 1), Number(0)
# What a row of a run must be like, for tables and pictures to be made of it.
SHAPE = {
    "task": str, "model": str, "policy": str, "n": Number(1, whole=True), "seed": COUNT, "accuracy": SHARE,
    "accuracy_ci": (SHARE, SHARE), "score": SHARE, "steps": AMOUNT, "tpf": AMOUNT, "tpf_ratio": AMOUNT,
    "forwards": COUNT, "seconds": AMOUNT, "tokens_per_second": AMOUNT, "split": str, "settings": dict, "dtype": str,
    "correct": str, "item_steps": [COUNT], "commits_by_step": [AMOUNT], "accuracy_strict?": SHARE,
}  # fmt: skip


def impossible(row: Row) -> str:
    """What contradicts itself in a row of that shape, in words."""
    right, n = row["correct"], row["n"]
    if {*right} <= {"0", "1"} and len(right) == len(row["item_steps"]) == n:
        return ""
    return f"`correct` must be {n} zeros and ones, and `item_steps` {n} numbers, one for each problem"


@dataclass(frozen=True)
class Cell:
    """A policy on a task. `name` is its name in tables, `tags` are columns that the experiment adds to the row."""

    task: Task
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    tags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """Which problems are decoded: the first `n` of a split under a seed, `batch_size` rows together."""

    n: int
    seed: int = 0
    split: str = "test"
    batch_size: int = 32


def run(
    llm: LLM, cells: Iterable[Cell], sample: Sample, ledger: Ledger | None = None, tick: Tick | None = None
) -> list[Row]:
    """A row for each cell, in order. `tick` is told each cell's name and correctness, item by item."""
    ledger = ledger or Ledger()
    weights = llm.identity["weights"]
    rows = []
    for cell in cells:
        name = cell.name or cell.policy
        policy, decode = resolve(cell.policy, settings_of(cell.task, cell.policy, cell.settings))
        key = key_of(
            task=repr(cell.task), policy=repr(policy), decode=repr(decode), model=llm.identity, version=__version__,
            n=sample.n, seed=sample.seed, split=sample.split,
        )  # fmt: skip
        row = ledger.get(key, SHAPE, impossible)
        if row is None:
            told = (
                (lambda item, name=name, task=cell.task: tick(f"{task.name} · {name}", item.correct)) if tick else None
            )
            made = evaluate(
                llm, cell.task, cell.policy, n=sample.n, seed=sample.seed, split=sample.split,
                batch_size=sample.batch_size, settings=dict(cell.settings), on_item=told,
            )  # fmt: skip
            row = ledger.add(key, made.row | by_item(made.items) | {"weights": weights})
        elif tick is not None:
            for mark in row["correct"]:
                tick(f"{cell.task.name} · {name}", mark == "1")
        rows.append({**row, "name": name, **cell.tags})
    return rows


def by_item(items: Sequence[Item]) -> Row:
    """What pairing and dynamics need of the items: correctness, steps, and mean commits at each step."""
    pace = [sum(counts) for counts in zip_longest(*(item.pace for item in items), fillvalue=0)]
    return {
        "correct": "".join("1" if item.correct else "0" for item in items),
        "item_steps": [item.steps for item in items],
        "commits_by_step": [round(count / len(items), 4) for count in pace],
    }


def paired(row: Row, base: Row) -> Row:
    """What a row changes over another one, problem by problem: differences with 95 % intervals, McNemar's p.

    Nothing if it is the same row.
    """
    if row is base:
        return {}
    ours, theirs = ([mark == "1" for mark in each["correct"]] for each in (row, base))
    return {
        "base": base["name"],
        "accuracy_diff": row["accuracy"] - base["accuracy"],
        "accuracy_diff_ci": list(paired_bootstrap(ours, theirs)),
        "mcnemar_p": mcnemar(ours, theirs),
        "steps_diff": row["steps"] - base["steps"],
        "steps_diff_ci": list(paired_bootstrap(row["item_steps"], base["item_steps"])),
    }
