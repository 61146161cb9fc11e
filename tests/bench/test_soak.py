"""A few seconds of the soak test: it finds no fault, and it does find one that is planted."""

from __future__ import annotations

from dataclasses import replace

import tacg
from tacg.bench import soak
from tacg.bench.asks import workload


def test_a_few_seconds_of_everything(llm: tacg.LLM) -> None:
    rows = list(soak.measure(llm, "tiny", 0.2, clients=6, asks=workload(llm, each=1)))
    assert [row["life"] for row in rows] == [1, 2]
    for row in rows:
        assert row["requests"] == row["right"] > 0
        assert row["faults"] > 0
        assert row["descriptors_growth"] < 20
    assert soak.passed(rows), rows
    assert [len(table.lines) for table in soak.tables(rows)] == [2, len(soak.FAULTS)]


def test_an_answer_that_differs_is_seen(llm: tacg.LLM) -> None:
    """Every answer is checked, for every route, streamed or not."""
    right = workload(llm, each=1)
    asks = [replace(each, wanted=["another"]) if each.good else replace(each, status=418) for each in right]
    rows = list(soak.measure(llm, "tiny", 0.2, clients=6, asks=asks))
    assert all(row["right"] == 0 and row["different"] == row["requests"] > 0 for row in rows)
    assert not soak.passed(rows)
