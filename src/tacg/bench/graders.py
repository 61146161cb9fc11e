"""Do the graders grade? Every reference answer of the four public sets, and as many that are wrong by design.

gold     the set's own solution
spelled  its final answer, written as models write them (mathematics only)
wrong    the final answer plus one; the reference program with what it returns changed
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tacg.errors import TacgError
from tacg.experiments.evaluate import surroundings
from tacg.experiments.show import Table
from tacg.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tacg.experiments.rows import Row
    from tacg.tasks import Problem, Task

# Each set: its file under its authors' name, and the knobs that ask for all of it.
SETS: dict[str, tuple[str, dict[str, str]]] = {
    "gsm8k": ("gsm8k_test.json", {}),
    "math500": ("math500.json", {}),
    "humaneval": ("HumanEval.jsonl.gz", {}),
    "mbpp": ("sanitized-mbpp.json", {"subset": "all"}),
}
CODE = ("humaneval", "mbpp")

# Appended to a reference program: the same function, returning something else of the same kind.
MUTANT = """

def _other(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + abs(value) + 1
    if isinstance(value, complex):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, dict):
        return {**value, "x": "x"}
    if isinstance(value, tuple):
        return (*value, "x")
    return 1 if value is None else [*value, "x"]

def _mutate(name):
    right = globals()[name]
    def wrong(*args, **named):
        globals()[name] = right  # a function that calls itself gets its own values
        try:
            return _other(right(*args, **named))
        finally:
            globals()[name] = wrong
    globals()[name] = wrong
"""


def measure(directory: Path, names: Sequence[str] = tuple(SETS), limit: int | None = None) -> Iterator[Row]:
    """A row for each set and kind of answer: how many are called right, by us and by the released code's reading."""
    for name in names:
        file, knobs = SETS[name]
        if not (directory / file).is_file():
            raise TacgError(f"There is no {file} in {directory}; pass the directory of the four sets with --sets.")
        task = get_task(name, data=str(directory / file), **knobs)
        problems = list(task.problems(n=limit))
        for kind, write in answers(name).items():
            yield {"bench": "graders", "task": name, "answers": kind, **_rates(task, problems, write, kind != "wrong")}


def _rates(task: Task, problems: list[Problem], write: Callable[[Problem], str], expected: bool) -> Row:
    """How many are called right, and which should have been called the other thing."""
    began = time.perf_counter()
    with ThreadPoolExecutor(max_workers=2) as pool:
        grades = list(pool.map(lambda problem: task.grade(problem, write(problem)), problems))
    verdicts = list(zip(problems, grades, strict=True))
    return {
        "n": len(problems),
        "correct": sum(grade.correct for grade in grades),
        "strict": sum(bool(grade.strict) for grade in grades),
        "unexpected": [problem.id for problem, grade in verdicts if grade.correct is not expected],
        "unexpected_strict": [problem.id for problem, grade in verdicts if grade.strict is not expected],
        "seconds": time.perf_counter() - began,
        **surroundings(),
    }


def answers(name: str) -> dict[str, Callable[[Problem], str]]:
    """How to write each kind of answer to a problem of this set."""
    gold: dict[str, Callable[[Problem], str]] = {"gold": lambda problem: problem.answer}
    if name in CODE:
        return gold | {"wrong": mutant}
    if name == "gsm8k":
        spelled, wrong = _dollars, _one_more
    else:
        spelled, wrong = _said, _plus_one
    return gold | {"spelled": spelled, "wrong": wrong}


def mutant(problem: Problem) -> str:
    """The reference program, returning something else."""
    functions = problem.data["functions"] if "functions" in problem.data else [problem.data["function"]]
    calls = "".join(f"_mutate({function!r})\n" for function in functions)
    return f"{problem.answer.removesuffix('```')}{MUTANT}\n{calls}```"


def _dollars(problem: Problem) -> str:
    value = float(problem.data["gold"].replace(",", ""))
    return f"We add 2 and 3.\nThe final answer is **${value:,.2f}** dollars."


def _one_more(problem: Problem) -> str:
    value = float(problem.data["gold"].replace(",", "")) + 1
    return f"The final answer is \\boxed{{{value:.0f}}}."


def _said(problem: Problem) -> str:
    return f"We add 2 and 3. The final answer is ${problem.data['gold']}$."


def _plus_one(problem: Problem) -> str:
    return f"The final answer is \\boxed{{{problem.data['gold']}+1}}."


def tables(rows: Sequence[Row]) -> list[Table]:
    """One line a row."""
    columns = ("set", "answers", "n", "called right", "by the released code", "seconds")
    names = ("task", "answers", "n", "correct", "strict")
    lines = tuple((*(str(row[name]) for name in names), f"{row['seconds']:.1f}") for row in rows)
    return [Table("Reference and wrong answers", columns, lines)]
