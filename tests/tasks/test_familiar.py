"""What we tell people that pocket knows is what it was trained on."""

from __future__ import annotations

import pytest

from tacg.tasks import free_names, get_task, task_names
from tacg.tasks.familiar import EXAMPLES, hint, is_familiar, knows


@pytest.mark.parametrize(
    ("model", "name"),
    [*(("pocket", name) for name in task_names()), *(("pocket-free", name) for name in free_names())],
)
def test_every_problem_is_familiar(model: str, name: str) -> None:
    assert all(is_familiar(problem.prompt, model) for problem in get_task(name).problems("test", 20))


def test_each_model_has_its_own_tasks() -> None:
    assert not is_familiar("Solve this sudoku", "pocket-free")
    assert hint("pocket-free").startswith("pocket-free knows word problems and small Python functions, and nothing")
    assert all(task in task_names(model) for model, task in EXAMPLES.items())
    assert knows("rxnmapper") is None


@pytest.mark.parametrize("prompt", ["What is the capital of France?", "Hello", "How many planets are there?", ""])
def test_others_are_not(prompt: str) -> None:
    assert not is_familiar(prompt)
