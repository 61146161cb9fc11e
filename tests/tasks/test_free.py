"""Tasks in free wording: one meaning in many words, graded by meaning; harder forms that training never sees."""

from __future__ import annotations

import random
import re
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import pytest

from tacg import TacgError
from tacg.tasks import free_names, get_task
from tacg.tasks.free_code import COMMENTED, NAMES
from tacg.tasks.wording import fitting, say, tokens_in

if TYPE_CHECKING:
    from collections.abc import Callable

TRAINED = ["free-code", "free-math"]


def test_tasks_are_listed() -> None:
    assert free_names() == sorted([*TRAINED, *(f"{name}-hard" for name in TRAINED)])
    with pytest.raises(TacgError, match=r"Did you mean 'free-math'\?"):
        get_task("fre-math")


@pytest.mark.parametrize("name", free_names())
def test_problems_are_reproducible_fit_and_are_graded_by_meaning(name: str) -> None:
    task = get_task(name)
    problems = list(task.problems("dev", n=12, seed=4))
    assert problems == list(task.problems("dev", n=12, seed=4))
    assert not {p.id for p in problems} & {p.id for p in task.problems("dev", n=12, seed=5)}
    assert all(task.grade(problem, problem.answer).correct for problem in problems)
    by_chance = sum(task.grade(problem, other.answer).correct for problem, other in pairwise(problems))
    assert by_chance <= 1, "two functions may happen to agree"
    assert not any(task.grade(problem, "").correct for problem in problems)
    length, block = task.decode["gen_length"], task.decode["block_length"]
    sizes = [tokens_in(problem.answer) for problem in task.problems("dev", n=100)]
    assert max(sizes) < length, "the end must fit in too"
    assert sum(sizes) / len(sizes) > length - block, "a block of padding is no work"
    assert len(set(sizes)) > 5, "lengths vary"


@pytest.mark.parametrize("name", TRAINED)
def test_one_problem_has_many_answers_all_of_them_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def all_of_them(write: Callable[[], str], least: int, most: int) -> str:
        written[:] = [write() for _ in range(20)]
        return written[0]

    monkeypatch.setattr(f"tacg.tasks.{name.replace('-', '_')}.fitting", all_of_them)
    task = get_task(name)
    _, problem = task.draw(random.Random(1))
    assert len(set(written)) == 20
    assert all(task.grade(problem, answer).correct for answer in written)


@pytest.mark.parametrize("name", TRAINED)
def test_no_training_text_occurs_elsewhere(name: str) -> None:
    """The hash of a problem's solution decides the split; the harder form is apart by construction."""
    task = get_task(name)
    train = list(islice(task.problems("train", seed=1), 3000))
    held = [p for split in ("dev", "test") for p in task.problems(split, n=150, seed=2)]
    held += list(get_task(f"{name}-hard").problems("train", n=150, seed=1))
    assert not {p.prompt for p in train} & {p.prompt for p in held}
    assert not {p.answer for p in train} & {p.answer for p in held}


def test_harder_forms_are_harder() -> None:
    stories = {name: next(get_task(name).problems()).prompt.count("On ") for name in ("free-math", "free-math-hard")}
    assert stories["free-math"] < stories["free-math-hard"] == 7
    functions = {name: max(_steps(name)) for name in ("free-code", "free-code-hard")}
    assert functions == {"free-code": 3, "free-code-hard": 6}


def _steps(name: str) -> list[int]:
    return [len(re.findall(r"\d: ", problem.prompt)) for problem in get_task(name).problems(n=30)]


def test_stories_are_graded_on_what_is_said_last() -> None:
    task = get_task("free-math")
    problem = next(task.problems())
    count, things = problem.data["count"], problem.data["things"]
    assert task.grade(problem, f"At first 1 {things}. So {count} {things}.").correct
    assert not task.grade(problem, f"So {count} {things}. No, {count + 1} {things}.").correct
    assert not task.grade(problem, f"So {count}.").correct


def test_functions_with_mixed_names_do_not_run() -> None:
    task = get_task("free-code")
    problem = next(p for p in task.problems() if "return sum" in p.answer)
    assert task.grade(problem, problem.answer).correct
    mixed = re.sub(r"return sum\(\w+\)", "return sum(omega)", problem.answer)
    assert task.grade(problem, mixed).score == 0
    names = set(re.findall(r"^ {4}(\w+) = ", problem.answer, re.MULTILINE)) - {"total"}
    assert sum(names <= set(series.split()) for series in NAMES) == 1, "a function keeps to one series"
    series = [set(names.split()) for names in NAMES]
    assert sum(map(len, series)) == len(set().union(*series)), "a name says which step it is"
    comments = sum("#" in p.answer for p in task.problems(n=100))
    assert 20 < comments < 95, COMMENTED


def test_say_draws_every_alternative_and_fills_in_facts() -> None:
    said = {say(random.Random(seed), "(On|By (the|)) {day}( now|).", day="Monday") for seed in range(200)}
    assert said == {
        f"{start} Monday{end}" for start in ("On", "By the", "By ") for end in (".", " now.")
    }  # what is in brackets inside brackets is chosen too
    words = iter(["a", "a b c d", "a b c"])
    assert fitting(lambda: next(words), 3, 3) == "a b c"
    assert fitting(lambda: "a", 3, 3) == "a"
    with pytest.raises(ValueError, match="No wording fits into 1 tokens"):
        fitting(lambda: "a b", 1, 1)
