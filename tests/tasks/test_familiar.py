"""What we tell people that pocket knows is what it was trained on."""

from __future__ import annotations

import pytest

from tacg.tasks import free_names, get_task, task_names
from tacg.tasks.familiar import is_familiar


@pytest.mark.parametrize("name", [*task_names(), *free_names()])
def test_every_problem_is_familiar(name: str) -> None:
    assert all(is_familiar(problem.prompt) for problem in get_task(name).problems("test", 20))


@pytest.mark.parametrize("prompt", ["What is the capital of France?", "Hello", "How many planets are there?", ""])
def test_others_are_not(prompt: str) -> None:
    assert not is_familiar(prompt)
