"""A ratchet on what a step and a forward ask of a GPU. Counts, not times: lower a limit when it is beaten."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from tacg.bench.device import KINDS, Case, cases, count, row_of
from tacg.bench.forwards import FORWARDS, SIMULATED, Forward, count_forward
from tacg.models.base import Denoiser
from tacg.records.rows import ResultRow

# model, policy, case, rows: the median of kernels, reads and uploads in steps in which no row comes or goes.
LIMITS = {
    ("pocket", "confidence", "", 1): (53, 1, 0),
    ("pocket", "klass", "", 1): (62, 1, 0),
    ("pocket", "tacg", "", 8): (82, 1, 0),
    ("pocket", "tacg+klass", "", 8): (90, 1, 0),
    ("pocket", "tacg", "temperature 0.7", 8): (95, 1, 0),
    # Unlike in prompt, length and threshold: as few as rows that are alike, or fewer, as none of them stops early.
    ("pocket", "tacg", "all unlike", 32): (82, 1, 0),
    # Each time a row enters a block its forward is planned anew, which is an upload.
    ("random llada2", "tacg", "prompts of unlike length", 8): (83, 1, 1),
}
PHASES = {"scan", "decide", "commit"}


@functools.cache
def known() -> dict[tuple[str, str, str, int], tuple[Denoiser, Case]]:
    return {(case.model, case.policy, case.about, len(case.requests)): (model, case) for model, case in cases()}


@pytest.fixture(params=LIMITS, ids=lambda key: "-".join(map(str, key)))
def measured(request: pytest.FixtureRequest) -> tuple[tuple[int, int, int], ResultRow]:
    model, case = known()[request.param]
    return LIMITS[request.param], row_of(case, count(model, case.requests))


def test_a_steady_step_stays_within_its_limits(measured: tuple[tuple[int, int, int], ResultRow]) -> None:
    limits, row = measured
    assert row["steady_steps"] >= 8, "there is something to take a median of"
    assert row["scan"].startswith("triton"), "what a CUDA user gets"
    told = "\n".join(f"{line}: {counts}" for line, counts in row["lines"].items())
    for name, limit in zip(KINDS, limits, strict=True):
        assert row[name] <= limit, f"more {name} than before; reads and uploads of a steady step:\n{told}"
    assert row["most"]["uploads"] <= 1, "a forward that is planned anew is one upload"
    assert row["phases"].keys() >= PHASES, "the engine's phases are told apart"
    assert row["forward"]["uploads"] <= limits[2], "the model, too, works out a plan once"


MIXTURE = 18  # kernels of a layer's experts: from the router to the sum with what went around them


@pytest.mark.parametrize("case", FORWARDS, ids=lambda case: f"{case.model}-{case.cache}-{case.rows}")
def test_a_forward_stays_within_its_limits(case: Forward) -> None:
    tally = count_forward(case)
    assert tally.count("kernel") <= SIMULATED[case.model, case.cache], "whatever the number of rows"
    assert tally.count("read") == tally.count("upload") == 0
    if case.family == "llada2":
        dense = count_forward(dataclasses.replace(case, shape=case.shape | {"first_k_dense_replace": case.layers}))
        experts, feed_forward = case.layers - 1, 4  # the first layer is dense anyway
        assert tally.count("kernel") - dense.count("kernel") <= experts * (MIXTURE - feed_forward)
