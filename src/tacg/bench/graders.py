"""Check the graders on every reference answer of the four public benchmarks and as many deliberately wrong answers.

gold     the set's own solution
spelled  its final answer, as models write it (mathematics only)
wrong    the final answer plus one; the reference program with changed return values

Right and wrong programs are also graded in every style in which models write them (`styles.py`), by our parser.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tacg.bench.styles import STYLES, program_of, styles_of
from tacg.errors import TacgError
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table
from tacg.sandbox import Trial, run
from tacg.tasks import get_task
from tacg.tasks.code import Programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from tacg.records.rows import ResultRow
    from tacg.tasks import Problem, Task

# Each set: its file under its authors' name, and the knobs that select all of it.
SETS: dict[str, tuple[str, dict[str, str]]] = {
    "gsm8k": ("gsm8k_test.json", {}),
    "math500": ("math500.json", {}),
    "humaneval": ("HumanEval.jsonl.gz", {}),
    "mbpp": ("sanitized-mbpp.json", {"subset": "all"}),
}
CODE = ("humaneval", "mbpp")


def measure(directory: Path, names: Sequence[str] = tuple(SETS), limit: int | None = None) -> Iterator[ResultRow]:
    """One row per set and kind of answer: how many are graded as right, by us and by the released code."""
    for name in names:
        task = _task(directory, name)
        problems = list(task.problems(n=limit))
        for kind, write in answers(name).items():
            yield {"bench": "graders", "task": name, "answers": kind, **_rates(task, problems, write, kind != "wrong")}


def measure_styles(directory: Path, names: Sequence[str] = CODE, limit: int | None = None) -> Iterator[ResultRow]:
    """One row per programming set and style: how many right and how many wrong programs are graded as right.

    Answers that parse to the same program are run once, because fences do not change it.
    """
    for name in names:
        task = _task(directory, name)
        assert isinstance(task, Programs)
        problems = list(task.problems(n=limit))
        known: dict[Trial, bool] = {}
        for style, write in styles_of(name).items():
            began, passing = time.perf_counter(), dict[bool, list[str]]()
            for wrong in (False, True):
                trials = {each.id: task.trial(each, write(program_of(each, wrong=wrong))) for each in problems}
                _run(known, trials.values())
                passing[wrong] = [number for number, trial in trials.items() if known[trial]]
            yield {
                "bench": "graders", "task": name, "answers": "styles", "style": style, "n": len(problems),
                "correct": len(passing[False]), "wrong_correct": len(passing[True]),
                "unexpected": [each.id for each in problems if each.id not in passing[False]] + passing[True],
                "seconds": time.perf_counter() - began, **surroundings(),
            }  # fmt: skip


def _run(known: dict[Trial, bool], trials: Iterable[Trial]) -> None:
    """Run the trials that have not been run yet."""
    new = [trial for trial in dict.fromkeys(trials) if trial not in known]
    with ThreadPoolExecutor(max_workers=2) as pool:
        known.update(zip(new, pool.map(lambda trial: all(run(trial).passed), new), strict=True))


def _task(directory: Path, name: str) -> Task:
    file, knobs = SETS[name]
    if not (directory / file).is_file():
        raise TacgError(f"There is no {file} in {directory}; pass the directory of the four sets with --sets.")
    return get_task(name, data=str(directory / file), **knobs)


def _rates(task: Task, problems: list[Problem], write: Callable[[Problem], str], expected: bool) -> ResultRow:
    """How many are graded as right, and which were graded unexpectedly."""
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
    """Functions that write each kind of answer to a problem of this set."""
    gold: dict[str, Callable[[Problem], str]] = {"gold": lambda problem: problem.answer}
    if name in CODE:
        return gold | {"wrong": lambda problem: STYLES["fence with `python`"](program_of(problem, wrong=True))}
    if name == "gsm8k":
        spelled, wrong = _dollars, _one_more
    else:
        spelled, wrong = _said, _plus_one
    return gold | {"spelled": spelled, "wrong": wrong}


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


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One line per kind of answer; one line per style, with one column per set."""
    plain = [row for row in rows if row["answers"] != "styles"]
    columns = ("set", "answers", "n", "called right", "by the released code", "seconds")
    names = ("task", "answers", "n", "correct", "strict")
    lines = tuple((*(str(row[name]) for name in names), f"{row['seconds']:.1f}") for row in plain)
    return [Table("Reference and wrong answers", columns, lines), style_table(rows)]


def style_table(rows: Sequence[ResultRow]) -> Table:
    """How many right and how many wrong programs of each style are graded as right."""
    told = {(row["style"], row["task"]): row for row in rows if row["answers"] == "styles"}
    lines = []
    for style in dict.fromkeys(style for style, _ in told):
        found = [told.get((style, task)) for task in CODE]
        cells = [f"{row['correct']} / {row['wrong_correct']} of {row['n']}" if row else "" for row in found]
        lines.append((style, *cells))
    columns = ("written as", *(f"{task}: right / wrong programs graded as right" for task in CODE))
    return Table("Ways to write a program", columns, tuple(lines))
