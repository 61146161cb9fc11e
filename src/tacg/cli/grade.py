"""Grade answers from any system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacg.cli.common import Data, Json, TaskKnobs, TaskName, load_task
from tacg.cli.shown import print_json, progress

EPILOG = """[bold]Examples[/bold]

tacg grade --task gsm8k --data gsm8k_test.jsonl --answers answers.jsonl

tacg grade --task mbpp --knob subset=all --data sanitized-mbpp.json --answers answers.jsonl --json

Each line of the answers file is {"id": "HumanEval/0", "answer": "…"}; if a benchmark has no ids, they are 0, 1, 2, …"""


def main(
    task: TaskName,
    answers: Annotated[Path, typer.Option("--answers", "-a", help="JSONL file: one id and answer per line.")],
    data: Data = None,
    knob: TaskKnobs = None,
    out: Annotated[Path | None, typer.Option(help="Write each answer's grade to this JSONL file.")] = None,
    as_json: Json = False,
) -> None:
    """Grade a file of answers; programs run in the sandbox (see [cyan]tacg doctor[/cyan])."""
    from tacg.errors import TacgError
    from tacg.experiments.grading import grade_answers, read_answers
    from tacg.files import make_room
    from tacg.records.rows import write_rows
    from tacg.tasks import Grade, benchmark_names, free_names, structured_names, task_names

    if task in (*task_names(), *free_names(), *structured_names()):
        raise TacgError(f"{task} is generated, not a benchmark; --task must be one of {', '.join(benchmark_names())}.")
    if out is not None:
        make_room(out)
        if out.exists():
            raise TacgError(f"{out} exists already: name another file.")
    chosen = load_task(task, data, knob)
    problems = {problem.id: problem for problem in chosen.problems()}
    found = read_answers(answers, problems)
    grades: dict[str, Grade] = {}
    with progress(task, len(found)) as tick:

        def keep(name: str, grade: Grade) -> None:
            grades[name] = grade
            tick(task, grade.correct)

        row = grade_answers(chosen, problems, found, keep)
    if out is not None:
        lines = [{"id": name, "correct": g.correct, "score": g.score, "strict": g.strict} for name, g in grades.items()]
        write_rows(out, lines)
    if row["missing"]:
        told = f"{row['missing']} of {len(problems)} problems have no answer and are not counted."
        typer.secho(told, fg="yellow", err=True)
    if as_json:
        print_json(row)
    else:
        strict = "" if row["strict"] is None else f"; {row['strict']} as the paper's released code reads them"
        typer.echo(f"{row['correct']} of {row['n']} right ({100 * row['accuracy']:.2f} %){strict}")
