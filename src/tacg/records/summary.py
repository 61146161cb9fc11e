"""Summaries of items: the row of a run, and its paired difference from another run."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from tacg.records.stats import mcnemar, paired_bootstrap, wilson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.records.results import Item
    from tacg.records.rows import ResultRow


def summary(items: Sequence[Item], task: str, model: str, policy: str, seed: int) -> dict[str, Any]:
    """The row of a run. `tpf` is the mean of tokens / forwards over items, `tpf_ratio` is total tokens / forwards."""
    n, hits = len(items), sum(item.correct for item in items)
    forwards = sum(item.forwards for item in items)
    return {
        "task": task,
        "model": model,
        "policy": policy,
        "n": n,
        "seed": seed,
        "accuracy": hits / n,
        "accuracy_ci": list(wilson(hits, n)),
        **strict_accuracy(items),
        **valid_share(items),
        "score": sum(item.score for item in items) / n,
        "steps": sum(item.steps for item in items) / n,
        "tpf": sum(item.tpf for item in items) / n,
        "tpf_ratio": sum(item.tokens for item in items) / forwards,
        "forwards": forwards,
        "auxiliary_forwards": sum(item.auxiliary for item in items),
        **tokens_per_position(items),
    }


def tokens_per_position(items: Sequence[Item]) -> dict[str, float]:
    """Computed positions, and tokens per computed position; empty if positions were not counted."""
    positions = sum(item.positions for item in items)
    if not positions:
        return {}
    return {"positions": positions, "tokens_per_position": sum(item.tokens for item in items) / positions}


def strict_accuracy(items: Sequence[Item]) -> dict[str, float]:
    """The accuracy by the released code's grading, for tasks that have it."""
    strict = [item.strict for item in items if item.strict is not None]
    return {"accuracy_strict": sum(strict) / len(strict)} if strict else {}


def valid_share(items: Sequence[Item]) -> dict[str, float]:
    """The share of well-formed answers, for tasks that check this."""
    valid = [item.valid for item in items if item.valid is not None]
    return {"valid": sum(valid) / len(valid)} if valid else {}


def by_item(items: Sequence[Item]) -> ResultRow:
    """Per-item data for pairing: correctness, score, steps, positions, forwards; and mean commits at each step."""
    pace = [sum(counts) for counts in zip_longest(*(item.pace for item in items), fillvalue=0)]
    return {
        "correct": "".join("1" if item.correct else "0" for item in items),
        "item_scores": [round(item.score, 4) for item in items],
        "item_steps": [item.steps for item in items],
        "item_positions": [item.positions for item in items],
        "item_forwards": [item.forwards for item in items],
        "commits_by_step": [round(count / len(items), 4) for count in pace],
    }


def paired(row: ResultRow, base: ResultRow) -> ResultRow:
    """The difference of a row from another, paired by problem, with 95 % intervals and McNemar's p.

    Empty if it is the same row.
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
