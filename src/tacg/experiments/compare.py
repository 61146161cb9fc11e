"""Policies side by side on the same problems: a row each, with what is gained over the policy beneath."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tacg.experiments.evaluate import Evaluation, evaluate
from tacg.experiments.stats import aup, mcnemar, paired_bootstrap
from tacg.policies import Wrapper, get_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tacg.experiments.evaluate import Item
    from tacg.llm import LLM
    from tacg.tasks import Task

DEFAULT_POLICIES = ("confidence", "tacg", "klass", "tacg+klass")


def compare(
    llm: LLM,
    tasks: Sequence[Task],
    policies: Sequence[str],
    *,
    n: int,
    seed: int = 0,
    split: str = "test",
    batch_size: int = 32,
    settings: dict[str, Any] | None = None,
    on_item: Callable[[Task, str, Item], None] | None = None,
    on_row: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Evaluate every policy on every task; `on_row` gets each row as soon as it is complete."""
    rows = []
    for task in tasks:
        runs: dict[str, Evaluation] = {}
        for spec in policies:
            mine = {name: value for name, value in (settings or {}).items() if _takes(spec, name)}
            told = (lambda item, task=task, spec=spec: on_item(task, spec, item)) if on_item else None
            runs[spec] = evaluate(
                llm, task, spec, n=n, seed=seed, split=split, batch_size=batch_size, settings=mine, on_item=told
            )
            row = runs[spec].row | against_base(spec, runs) | {"aup": _aup(spec, runs)}
            rows.append(row)
            if on_row is not None:
                on_row(row)
    return rows


def _takes(spec: str, name: str) -> bool:
    """Whether a setting belongs to the decode or to this policy; a comparison sets each where it can be set."""
    from tacg.engine.request import Decode

    return name == "suppress" or name in Decode().knobs() or name in get_policy(spec).knobs()


def against_base(spec: str, runs: dict[str, Evaluation]) -> dict[str, Any]:
    """What a gated policy changes over the policy it wraps, item by item, if that one was run too."""
    policy = get_policy(spec)
    base = policy.base.name if isinstance(policy, Wrapper) else None
    if base is None or base not in runs:
        return {"base": None}
    ours, theirs = runs[spec].items, runs[base].items
    right, wrong = [item.correct for item in ours], [item.correct for item in theirs]
    steps, before = [item.steps for item in ours], [item.steps for item in theirs]
    return {
        "base": base,
        "accuracy_diff": (sum(right) - sum(wrong)) / len(ours),
        "accuracy_diff_ci": list(paired_bootstrap(right, wrong)),
        "mcnemar_p": mcnemar(right, wrong),
        "steps_diff": (sum(steps) - sum(before)) / len(ours),
        "steps_diff_ci": list(paired_bootstrap(steps, before)),
    }


def _aup(spec: str, runs: dict[str, Evaluation]) -> float:
    """Accuracy under parallelism of this run's point, and of the one-token-a-step point if that was run before it."""
    chosen = [runs[name].row for name in {"schedule", spec} if name in runs]
    best = max(run.row["accuracy"] for run in runs.values())
    return aup([(row["tpf"], 100 * row["accuracy"]) for row in chosen], best=100 * best)


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Append rows to a JSONL file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            file.flush()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
