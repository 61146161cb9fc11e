"""Problems: reproducible, disjoint between splits, gradable. The sandbox has tests of its own."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest

from tacg import TacgError
from tacg.tasks import get_task, task_names
from tacg.tasks.pocket_code import agreement, inputs, reference_outputs
from tacg.tasks.pocket_sudoku import solved_by_elimination

POCKET = ["pocket-code", "pocket-math", "pocket-sudoku"]


def test_tasks_are_listed() -> None:
    assert task_names() == POCKET
    with pytest.raises(TacgError, match=r"Did you mean 'pocket-math'\?"):
        get_task("poket-math")
    with pytest.raises(TacgError, match=r"Did you mean 'test'\?"):
        next(get_task("pocket-math").problems("tst"))
    with pytest.raises(TacgError, match="`n` must be >= 1, got 0"):
        next(get_task("pocket-math").problems(n=0))
    with pytest.raises(TacgError, match="`largest` must be int"):
        get_task("pocket-math", largest=400)


@pytest.mark.parametrize("name", POCKET)
def test_a_seed_gives_the_same_problems(name: str) -> None:
    task = get_task(name)
    first, again, other = (list(task.problems(seed=seed, n=20)) for seed in (7, 7, 8))
    assert first == again
    assert not {problem.id for problem in first} & {problem.id for problem in other}
    assert len({problem.prompt for problem in first}) == 20


def test_no_training_text_occurs_in_dev_or_test() -> None:
    """20,000 samples, fewer of the tasks that take longer to generate; prompts and answers both."""
    counts = {"pocket-math": 10_000, "pocket-code": 8_500, "pocket-sudoku": 1_500}
    for name, count in counts.items():
        task = get_task(name)
        train = list(islice(task.problems("train", seed=1), int(count * 0.8)))
        held = [p for split in ("dev", "test") for p in islice(task.problems(split, seed=2), int(count * 0.1))]
        assert not {p.prompt for p in train} & {p.prompt for p in held}
        assert not {p.answer for p in train} & {p.answer for p in held}
        dev, test = ({p.prompt for p in task.problems(split, n=200, seed=3)} for split in ("dev", "test"))
        assert not dev & test


@pytest.mark.parametrize("name", POCKET)
def test_reference_answers_are_right_and_others_wrong(name: str) -> None:
    task = get_task(name)
    problems = list(task.problems("dev", n=12, seed=4))
    assert all(task.grade(problem, problem.answer).correct for problem in problems)
    by_chance = sum(task.grade(problem, other.answer).correct for problem, other in pairwise(problems))
    assert by_chance <= 1, "two stories may end with the same number"
    assert not any(task.grade(problem, "").correct for problem in problems)


def test_math_is_graded_on_the_final_answer() -> None:
    task = get_task("pocket-math")
    problem = next(task.problems())
    value = problem.data["answer"]
    assert task.grade(problem, f"Who knows. The answer is {value}.").correct
    assert task.grade(problem, f"So it is {value}").correct
    assert not task.grade(problem, f"It is {value}. The answer is {value + 1}.").correct


def test_difficulty_is_a_knob() -> None:
    short = next(get_task("pocket-math", min_events=1, max_events=1).problems())
    assert short.answer.count("Monday") == 1
    assert "Tuesday" not in short.answer
    small = next(get_task("pocket-sudoku", puzzles=1, clues=7).problems())
    assert small.data["puzzle"].count(0) == 9
    assert solved_by_elimination(small.data["puzzle"], 4)
    large = get_task("pocket-sudoku", size="6", puzzles=1)
    assert large.decode == {"gen_length": 43, "block_length": 43}
    assert len(next(large.problems()).data["solution"]) == 36
    code = next(get_task("pocket-code", min_steps=1, max_steps=1).problems())
    assert "a: " in code.prompt
    assert "b: " not in code.prompt
    assert ".append(" in next(get_task("pocket-code", loops=1.0).problems()).answer


def test_sudoku_counts_open_cells() -> None:
    task = get_task("pocket-sudoku")
    problem = next(task.problems())
    cells = list(problem.data["solution"])
    place = problem.data["puzzle"].index(0)
    cells[place] = cells[place] % 6 + 1
    grade = task.grade(problem, " ".join(map(str, cells)))
    open_cells = problem.data["puzzle"].count(0)
    assert (grade.correct, grade.score) == (False, (open_cells - 1) / open_cells)
    assert task.grade(problem, "1 2").score <= 2 / open_cells


def test_code_references_do_something() -> None:
    """The hidden inputs tell programs apart: few references return the same on all of them."""
    problems = list(get_task("pocket-code").problems(n=60))
    assert len(inputs(problems[0].data["seed"])) == 10
    assert sum(len({str(out) for out in reference_outputs(problem)}) > 2 for problem in problems) > 40


REFERENCE = "def f(xs):\n    return sum(xs)"
INPUTS = [[], [1], [1, 2, 3]]


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ("def f(xs):\n    return sum(xs)", 1.0),
        ("def f(xs):\n    return len(xs)", 2 / 3),
        ("def f(xs):\n    return float(sum(xs))", 0.0),
        ("def f(xs):\n    return sum(xs", 0.0),
        ("def g(xs):\n    return sum(xs)", 0.0),
        ("print('1.0')\ndef f(xs):\n    print('1.0' * 10000)\n    return sum(xs)", 1.0),
        ("import os\nos.write(1, b'1.0')\nos._exit(0)", 0.0),
        ("raise SystemExit(0)", 0.0),
        ("def f(xs):\n    return [0] * 10**10", 0.0),
        ("def f(xs):\n    return __import__('os').environ['HOME']", 0.0),
    ],
)
def test_pocket_code_is_graded_by_agreement(answer: str, share: float) -> None:
    assert agreement(answer, REFERENCE, "f", INPUTS) == pytest.approx(share)
