"""List the tasks, or show some of their problems."""

from __future__ import annotations

from typing import Annotated

import typer

from tacg.cli import complete
from tacg.cli.common import Data, Json, Seed, Split, TaskKnobs, load_task
from tacg.cli.shown import print_json
from tacg.errors import TacgError

EPILOG = """[bold]Examples[/bold]

tacg tasks

tacg tasks pocket-code --n 2 --seed 5

tacg tasks pocket-math --bare --n 3 | tacg generate -

tacg tasks gsm8k --data gsm8k_test.jsonl --knob protocol=lm-eval --knob shots=2"""


def main(
    name: Annotated[
        str | None, typer.Argument(help="Show problems of this task.", autocompletion=complete.tasks)
    ] = None,
    n: Annotated[int, typer.Option(help="Number of problems to show.", min=1)] = 1,
    seed: Seed = 0,
    split: Split = "test",
    data: Data = None,
    knob: TaskKnobs = None,
    bare: Annotated[bool, typer.Option("--bare", help="Only prompts, one per line: for `tacg generate -`.")] = False,
    as_json: Json = False,
) -> None:
    """List the tasks on which decoders can be graded."""
    from tacg.tasks import all_names, get_task

    if name is None:
        about = {each: (type(get_task(each)).__doc__ or "").splitlines()[0] for each in all_names()}
        if as_json:
            print_json(about)
        else:
            for task, line in about.items():
                typer.echo(f"{task:18} {line}")
        return
    problems = list(load_task(name, data, knob).problems(split, n, seed))
    if as_json:
        print_json([{name: getattr(each, name) for name in ("id", "system", "prompt", "answer")} for each in problems])
        return
    if bare:
        if any("\n" in each.prompt for each in problems):
            raise TacgError(f"Prompts of {name} have several lines; watch one: tacg eval -t {name} --n 1 --watch.")
        typer.echo("\n".join(each.prompt for each in problems))
        return
    for each in problems:
        typer.secho(each.id, dim=True)
        if each.system:
            typer.secho(f"{each.system}\n", dim=True)
        typer.echo(f"{each.prompt}\n")
        typer.secho(f"{each.answer}\n", fg="green")
