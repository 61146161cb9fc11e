"""What verbs print beside their answers: bars that know how long it takes, and a hint at what pocket knows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from rich import progress as bars

from tacg.cli.common import hint_at_tasks, load_tasks
from tacg.cli.main import run
from tacg.cli.shown import progress

if TYPE_CHECKING:
    from rich.progress import Task


def test_the_remaining_time_is_right_after_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 of 100 items were known; the others take a second each on this clock, so 10 are left after 10 more."""
    seen = list[bars.Progress]()

    class Timed(bars.Progress):
        def __init__(self, *columns: object, **options: object) -> None:
            super().__init__(*columns, **options, get_time=lambda: now[0], auto_refresh=False)  # type: ignore[arg-type]
            seen.append(self)

    now = [0.0]
    monkeypatch.setattr(bars, "Progress", Timed)
    with progress("eval", 100) as tick:
        for _ in range(80):
            tick("eval", True, 2.0, known=True)
        for _ in range(10):
            now[0] += 1.0
            tick("eval", False, 2.0)
        (task,) = seen[0].tasks
        assert_remaining(task)


def assert_remaining(task: Task) -> None:
    assert task.completed == 90
    assert task.time_remaining == pytest.approx(10, abs=2)
    assert "89 % right" in task.description


@pytest.mark.parametrize(
    ("model", "prompt", "said"),
    [
        ("pocket", "Hello", True),
        ("pocket", "Solve this sudoku", False),
        ("./LLaDA-8B", "Hello", False),
        ("pocket-free", "Solve this sudoku", True),
    ],
)
def test_people_learn_what_pocket_knows(
    model: str, prompt: str, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hint_at_tasks(model, [prompt]) is said
    assert (f"{model} knows word problems" in capsys.readouterr().err) is said


def test_people_learn_which_pocket_was_trained_on_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    load_tasks(["free-math-hard"], model="pocket")
    assert "add --model pocket-free" in capsys.readouterr().err
    load_tasks(["free-math"], model="pocket-free")
    load_tasks(["free-math", "pocket-math"], model="./LLaDA-8B")
    assert not capsys.readouterr().err


def test_problems_can_be_piped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tacg", "tasks", "pocket-math", "--bare", "--n", "3"])
    with pytest.raises(SystemExit):
        run()
    assert [line[-4:] for line in capsys.readouterr().out.splitlines()] == ["now?"] * 3
    monkeypatch.setattr(sys, "argv", ["tacg", "tasks", "pocket-sudoku", "--bare"])
    with pytest.raises(SystemExit):
        run()
    assert "have several lines" in capsys.readouterr().err
