"""Do constraints hold, what do they cost, and what do they save? Each question has a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacg.bench.constraint import answers, client, cost, trials
from tacg.errors import unknown
from tacg.records.tables import Table, interval

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tacg.records.rows import ResultRow

FAULTS = ("refused_though_possible", "decoded_though_impossible", "dead_ends", "invalid", "wrong_boards")
COUNTED = (("trials",), ("answered",), ("refused",), FAULTS)


PARTS = ("trials", "cost", "client", "answers")


def measure(
    model: str, trials_: int, requests: int, problems: int, *, seed: int = 0, only: str = "", quick: bool = False
) -> Iterator[ResultRow]:
    """Trials (three fifths regular expressions, two fifths schemas), cost of a step, requests of a client, answers.

    only  one of PARTS; a quick run leaves out the last two
    """
    if only and only not in PARTS:
        raise unknown("part", only, PARTS)
    parts = [only] if only else PARTS[:2] if quick else PARTS
    if "trials" in parts:
        schemas = max(1, 2 * trials_ // 5)
        yield trials.measure("regex", max(1, trials_ - schemas), seed)
        yield trials.measure("schema", schemas, seed)
    if "cost" in parts:
        yield cost.measure(quick=quick, steps=2 if quick else 12)
    if "client" in parts:
        yield from client.measure(model, requests)
    if "answers" in parts:
        yield from answers.measure(model, problems, seed=seed)


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One table for each part that was measured."""
    parts = {name: [row for row in rows if row["part"] == name] for name in PARTS}
    made = [_trials(parts["trials"]), _cost(parts["cost"]), _client(parts["client"])]
    made += [_accuracy(parts["answers"]), _saved(parts["answers"])]
    return [table for table in made if table.lines]


def _trials(rows: Sequence[ResultRow]) -> Table:
    kinds = dict.fromkeys(row["subject"] for row in rows)
    some = {kind: [row for row in rows if row["subject"] == kind] for kind in kinds}
    return Table(
        "Random constraints and random logits",
        ("constraints", "trials", "answered, all valid", "refused, all impossible", "faults"),
        tuple(
            (kind, *(f"{sum(row[name] for row in some[kind] for name in names):,}" for names in COUNTED))
            for kind in kinds
        ),
    )


def _cost(rows: Sequence[ResultRow]) -> Table:
    return Table(
        "What a step takes, in ms of one core",
        ("vocabulary", "fields", "allowed tokens", "masking", "output layer", "whole step", "constraint's share"),
        tuple(
            (
                f"{row['vocabulary']:,}", str(row["fields"]), f"{row['boards_ms']:.1f}", f"{row['masking_ms']:.1f}",
                f"{row['output_ms']:.0f}", f"{row['step_ms']:.0f}", f"{100 * row['share_of_step']:.1f} %",
            )
            for row in rows
        ),
    )  # fmt: skip


def _client(rows: Sequence[ResultRow]) -> Table:
    return Table(
        "The official client and a pydantic model",
        ("answers", "requests", "valid"),
        tuple((row["subject"], str(row["requests"]), str(row["valid"])) for row in rows),
    )


def _accuracy(rows: Sequence[ResultRow]) -> Table:
    return Table(
        "Answers of pocket, with 95 % intervals",
        ("task", "policy", "n", "answers", "valid", "accuracy", "steps", "forced tokens", "cut"),
        tuple(
            (
                row["subject"], row["policy"], str(row["n"]), row["arm"], _percent(row.get("valid")),
                f"{_percent(row['accuracy'])} {_points(row['accuracy_ci'], '.0f')}",
                f"{row['steps']:.1f}", f"{row['forced']:.1f}", f"{row['cut']:.2f}",
            )
            for row in rows
        ),
    )  # fmt: skip


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _points(bounds: Sequence[float], form: str) -> str:
    return interval(100 * bounds[0], 100 * bounds[1], form)


def _saved(rows: Sequence[ResultRow]) -> Table:
    lines = []
    for row in rows:
        if row["arm"] == answers.ARMS[1]:
            pair = row["constrained_minus_this"]
            saved, high, low = (0 - each for each in (pair["steps_diff"], *pair["steps_diff_ci"]))
            lines.append((
                row["subject"], row["policy"], str(row["n"]), f"{row['steps']:.1f}",
                f"{row['steps'] - saved:.1f}", f"{saved:.1f} {interval(low, high, '.1f')}",
                _percent(saved / row["steps"]),
                f"{100 * pair['accuracy_diff']:+.1f} {_points(pair['accuracy_diff_ci'], '+.1f')}",
            ))  # fmt: skip
    return Table(
        "Steps that forced tokens save, paired by problem, with 95 % intervals",
        ("task", "policy", "n", "without free tokens", "with", "steps saved", "share", "accuracy, points"),
        tuple(lines),
    )
