"""Compiled layers: in one piece each, once for a whole run, with the answers of layers that are not compiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch._dynamo.utils import counters

import tacg
from tacg.errors import TacgError
from tacg.models.compiling import compile_layers
from tacg.models.layers import LayerSteps
from tacg.models.tiny import write_checkpoint


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Nothing compiled earlier is reused here, and later tests reuse nothing from here."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def steps_of(llm: tacg.LLM) -> list[LayerSteps]:
    model: Any = llm.model
    return [module for module in model.modules() if isinstance(module, LayerSteps)]


def settings_of(number: int) -> dict[str, object]:
    return {"gen_length": 16 + 8 * number, "block_length": 4, "cache": ("auto", "none")[number % 2]}


# Pieces of a model: before and after attention. Layers with experts count on the host after it, if that is the CPU.
@pytest.mark.parametrize(("family", "pieces"), [("llada", 2), ("sdar-moe", 1)])
def test_nothing_is_compiled_twice(family: str, pieces: int, tmp_path: Path) -> None:
    """Batches and lengths differ. PyTorch traces, and runs what it traced as it is: equal to the last bit."""
    plain, compiled = tacg.load(write_checkpoint(tmp_path, family=family)), tacg.load(tmp_path)
    compile_layers(cast("Any", compiled.model), backend="eager")
    prompts = ["1 + 1", "a longer prompt than that", "x" * 70]
    for number in range(3):
        batch = prompts[: number + 1]
        found = compiled.generate(batch, "tacg", **settings_of(number))
        expected = plain.generate(batch, "tacg", **settings_of(number))
        assert [each.commits for each in found] == [each.commits for each in expected]
        assert counters["stats"]["unique_graphs"] == pieces


def test_load_compiles(tmp_path: Path) -> None:
    """On the first forward, which is skipped here because the C++ compiler takes a while."""
    plain, compiled = tacg.load(write_checkpoint(tmp_path)), tacg.load(tmp_path, compile=True)
    steps = [[vars(layer).keys() & {"before", "after"} for layer in steps_of(llm)] for llm in (plain, compiled)]
    assert steps == [[set(), set()], [{"before", "after"}] * 2]
    assert not counters["stats"]


def test_families_without_steps_are_refused() -> None:
    with pytest.raises(TacgError, match="not supported for this family"):
        compile_layers(torch.nn.Linear(2, 2))
