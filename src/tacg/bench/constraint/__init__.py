"""Do constraints hold, what do they cost, and what do they save? Each question has a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacg.bench.constraint import client, cost, trials
from tacg.records.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tacg.records.rows import ResultRow

FAULTS = ("refused_though_possible", "decoded_though_impossible", "dead_ends", "invalid", "wrong_boards")
COUNTED = (("trials",), ("answered",), ("refused",), FAULTS)


def measure(model: str, trials_: int, requests: int, *, quick: bool = False) -> Iterator[ResultRow]:
    """Trials of regular expressions, then of schemas, two of five; the cost of a step; requests of a client, if any."""
    schemas = max(1, 2 * trials_ // 5)
    yield trials.measure("regex", max(1, trials_ - schemas))
    yield trials.measure("schema", schemas)
    yield cost.measure(quick=quick, steps=2 if quick else 12)
    if requests:
        yield from client.measure(model, requests)


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One table for each part that was measured."""
    parts = {name: [row for row in rows if row["part"] == name] for name in ("trials", "cost", "client")}
    made = [
        Table(
            "Random constraints and random logits",
            ("constraints", "trials", "answered, all valid", "refused, all impossible", "faults"),
            tuple(
                (kind, *(f"{sum(row[name] for row in some for name in names):,}" for names in COUNTED))
                for kind in dict.fromkeys(row["subject"] for row in parts["trials"])
                for some in [[row for row in parts["trials"] if row["subject"] == kind]]
            ),
        ),
        Table(
            "What a step takes, in ms of one core",
            ("vocabulary", "fields", "boards", "masking", "output layer", "whole step", "constraint's share"),
            tuple(
                (
                    f"{row['vocabulary']:,}", str(row["fields"]), f"{row['boards_ms']:.1f}", f"{row['masking_ms']:.1f}",
                    f"{row['output_ms']:.0f}", f"{row['step_ms']:.0f}", f"{100 * row['share_of_step']:.1f} %",
                )
                for row in parts["cost"]
            ),
        ),
        Table(
            "The official client and a pydantic model",
            ("answers", "requests", "valid"),
            tuple((row["subject"], str(row["requests"]), str(row["valid"])) for row in parts["client"]),
        ),
    ]  # fmt: skip
    return [table for table in made if table.lines]
