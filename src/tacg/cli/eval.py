"""Decode a task's problems with a policy and grade the answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    BatchSize,
    Data,
    Json,
    Model,
    Seed,
    Settings,
    Split,
    TaskKnobs,
    load_model,
    load_task,
    parse_settings,
    print_json,
    progress,
    show_tables,
)

if TYPE_CHECKING:
    from tacg.llm import LLM
    from tacg.tasks import Task

EPILOG = """[bold]Examples[/bold]

tacg eval --task pocket-math --policy tacg --n 200 --seed 7

tacg eval --task pocket-sudoku --n 1 --watch

tacg eval --task pocket-sudoku --policy confidence --set threshold=0.7 --json

tacg eval --task pocket-code --policy schedule --split dev --out runs/code.jsonl

tacg eval --task gsm8k --data gsm8k_test.jsonl --policy tacg:llada/gsm8k --model ./LLaDA-8B-Instruct --limit 1319

tacg eval --task mbpp --knob subset=all --knob protocol=lm-eval --model ./LLaDA2.0-mini"""


def main(
    task: Annotated[str, typer.Option("--task", "-t", help="See [cyan]tacg tasks[/cyan].")],
    policy: Annotated[str, typer.Option("--policy", "-p", help="See [cyan]tacg policies[/cyan].")] = "tacg",
    n: Annotated[int, typer.Option("--n", "--limit", help="Problems, at most.", min=1)] = 100,
    seed: Seed = 0,
    split: Split = "test",
    model: Model = DEFAULT_MODEL,
    data: Data = None,
    knob: TaskKnobs = None,
    setting: Settings = None,
    batch_size: BatchSize = 32,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show the first problem resolving.")] = False,
    out: Annotated[Path | None, typer.Option(help="Append the row to this JSONL file.")] = None,
    as_json: Json = False,
) -> None:
    """Grade a policy on a task."""
    from tacg.experiments.compare import tables
    from tacg.experiments.evaluate import evaluate
    from tacg.experiments.rows import write_rows
    from tacg.experiments.show import provenance

    chosen, settings = load_task(task, data, knob or []), parse_settings(policy, setting or [])
    llm = load_model(model)
    if watch:
        _watch_first(llm, chosen, policy, seed, split, settings)
    with progress(f"{task} · {policy}", n) as tick:
        row = evaluate(
            llm, chosen, policy, n=n, seed=seed, split=split, batch_size=batch_size, settings=settings,
            on_item=lambda item: tick(f"{task} · {policy}", item.correct),
        ).row  # fmt: skip
    if out is not None:
        write_rows(out, [row])
    if as_json:
        print_json(row)
    else:
        show_tables(tables([row]), provenance([row]))


def _watch_first(llm: LLM, task: Task, policy: str, seed: int, split: str, settings: dict[str, Any]) -> None:
    """The first problem of the run: asked, resolving, judged."""
    from tacg.cli.watch import watch_one
    from tacg.experiments.evaluate import settings_of

    (problem,) = task.problems(split, 1, seed)
    typer.secho(f"\n{problem.prompt}\n", bold=True, err=True)
    output = watch_one(llm, problem.asked, policy, None, settings_of(task, policy, settings), delay=0.05)
    right = task.grade(problem, output.text).correct
    verdict = "right" if right else f"wrong, expected:\n{problem.answer}"
    typer.secho(
        f"{verdict} ({output.steps} steps, {output.tpf:.1f} tokens per forward)",
        fg="green" if right else "red",
        err=True,
    )
