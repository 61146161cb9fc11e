"""Record a decode step by step and view it in a browser."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    CacheMode,
    Compiled,
    Data,
    Device,
    Dtype,
    Graphed,
    Json,
    MaybeTask,
    Model,
    Quantize,
    Seed,
    SettingOptions,
    TaskKnobs,
    Verifier,
    hint_at_tasks,
    load_model,
    load_task,
    parse_settings,
    policy_option,
)
from tacg.cli.shown import print_json
from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tacg.canvas import Canvas
    from tacg.llm import LLM
    from tacg.tasks import Problem, Task

EPILOG = """[bold]Examples[/bold]

tacg trace "$(tacg tasks pocket-math --bare)"

tacg trace --task pocket-sudoku --policy confidence --policy tacg      two decoders on one problem, side by side

tacg trace runs/trace/tacg.jsonl runs/trace/confidence.jsonl           traces recorded before

tacg trace runs/trace/confidence.jsonl --replay tacg                   what would TACG have done with these signals?"""


def main(
    what: Annotated[list[str] | None, typer.Argument(help="A prompt, or one or two .jsonl traces.")] = None,
    task: MaybeTask = None,
    seed: Seed = 0,
    policy: Annotated[list[str] | None, policy_option("One or two policies; default: tacg.")] = None,
    model: Model = DEFAULT_MODEL,
    verifier: Verifier = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    quantize: Quantize = None,
    compiled: Compiled = False,
    graphs: Graphed = False,
    data: Data = None,
    knob: TaskKnobs = None,
    setting: SettingOptions = None,
    cache: CacheMode = None,
    other: Annotated[
        str | None, policy_option("Show what this policy would do with the recorded signals.", "--replay")
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for the traces and player.html.")] = Path("runs/trace"),
    as_json: Json = False,
) -> None:
    """Record traces of a prompt or of a task's problem and write a player, or show existing traces."""
    from tacg.files import make_room
    from tacg.trace import read_trace, replay
    from tacg.trace.player import write_player

    words = what or []
    make_room(out / "player.html")
    most = 1 if other is not None else 2
    if max(len(words), len(policy or [])) > most:
        raise TacgError(f"The player shows two traces, --replay takes one; got {max(len(words), len(policy or []))}.")
    if words and all(word.endswith(".jsonl") for word in words):
        files = [Path(word) for word in words]
    else:
        if (task is None) == (len(words) != 1):
            raise TacgError(f"Give one prompt, or --task, or .jsonl files; got {len(words)} words.")
        chosen, policies = load_task(task, data, knob, model) if task else words[0], policy or ["tacg"]
        settings = parse_settings(policies, setting, cache)
        llm = load_model(
            model, dtype=dtype, device=device, verifier=verifier, quantize=quantize, compiled=compiled, graphs=graphs
        )
        hint_at_tasks(model, words)
        files = _record(llm, chosen, seed, policies, settings, out)
    traces = [read_trace(file) for file in files]
    if other is not None:
        traces = [traces[0], replay(traces[0], other)]
    player = write_player(out / "player.html", traces)
    typer.secho(f"player: {player}", err=True)
    if as_json:
        print_json({"traces": [str(file) for file in files], "player": str(player)})


def _record(
    llm: LLM, what: Task | str, seed: int, policies: list[str], settings: Mapping[str, Any], out: Path
) -> list[Path]:
    """Decode a prompt, or the first problem of a task, with each policy; returns the files of the traces."""
    from tacg.experiments.evaluate import settings_of
    from tacg.experiments.grid import takes
    from tacg.trace import record

    prompt: str | list[dict[str, str]] | Canvas = what if isinstance(what, str) else ""
    grade: Callable[[str], dict[str, Any]] | None = None
    if not isinstance(what, str):
        (problem,) = what.problems("test", 1, seed)
        prompt, grade = problem.asked, functools.partial(_graded, what, problem)

    files = []
    for spec in policies:
        file = out / f"{spec.replace('/', '-').replace(':', '-')}.jsonl"
        mine = takes(spec, settings)
        if not isinstance(what, str):
            mine = {**settings_of(what, spec, mine, llm), **problem.held}
        for event in record(llm, prompt, spec, file, settings=mine, grade=grade):
            del event
        typer.secho(f"trace: {file}", err=True)
        files.append(file)
    return files


def _graded(task: Task, problem: Problem, text: str) -> dict[str, Any]:
    found = task.grade(problem, text)
    return {"correct": found.correct, "score": found.score}
