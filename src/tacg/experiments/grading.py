"""Grade answers from a file with one `{"id": …, "answer": …}` per line."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError
from tacg.files import parse_json, read_text, what_is
from tacg.records.stats import wilson
from tacg.shapes import brief

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tacg.records.rows import ResultRow
    from tacg.tasks import Grade, Problem, Task


def read_answers(path: Path, problems: Mapping[str, Problem]) -> dict[str, str]:
    """The answers by problem id."""
    answers: dict[str, str] = {}
    for number, line in enumerate(read_text(path, "file of answers", HINT).split("\n"), start=1):
        if line.strip():
            name, answer = _answer(line, f"{path}, line {number}")
            if name not in problems:
                raise TacgError(f"{path}, line {number}: no problem has the id {brief(name)}; {_like(problems)}.")
            if name in answers:
                raise TacgError(f"{path}, line {number}: a second answer to {brief(name)}; keep one of them.")
            answers[name] = answer
    if not answers:
        raise TacgError(f"{path} has no answers; write one per line, as in {_EXAMPLE}.")
    return answers


HINT = "pass the answers with --answers"
_EXAMPLE = '{"id": "0", "answer": "The final answer is 18"}'


def _answer(line: str, where: str) -> tuple[str, str]:
    told: Any = parse_json(line, where, f"a line must be like {_EXAMPLE}")
    name, answer = (told.get("id"), told.get("answer")) if isinstance(told, dict) else (None, None)
    if type(name) not in (str, int) or not isinstance(answer, str):
        raise TacgError(
            f"{where}: `id` must be text or a whole number, `answer` text; a line must be like {_EXAMPLE}. "
            f"This is {what_is(told)}."
        )
    return str(name), answer


def _like(problems: Mapping[str, Problem]) -> str:
    first, *_, last = [*problems, *problems]
    return f"they go from {first!r} to {last!r}"


def grade_answers(
    task: Task, problems: Mapping[str, Problem], answers: Mapping[str, str],
    on_grade: Callable[[str, Grade], None] | None = None,
) -> ResultRow:  # fmt: skip
    """Grade every answer and return the summary row. `missing` counts the problems without an answer."""

    def judge(name: str) -> Grade:
        grade = task.grade(problems[name], answers[name])
        if on_grade is not None:
            on_grade(name, grade)
        return grade

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:  # programs and algebra run in separate processes
        grades = list(pool.map(judge, answers))
    hits, n = sum(grade.correct for grade in grades), len(grades)
    strict = [grade.strict for grade in grades if grade.strict is not None]
    return {
        "task": task.name,
        "correct": hits,
        "n": n,
        "accuracy": hits / n,
        "accuracy_ci": list(wilson(hits, n)),
        "score": sum(grade.score for grade in grades) / n,
        "strict": sum(strict) if strict else None,
        "missing": len(problems) - n,
    }
