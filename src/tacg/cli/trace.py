"""Record a decode step by step and view it in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacg.cli.common import DEFAULT_MODEL, Json, Model, SettingOptions, load_model, print_json, shared_settings
from tacg.errors import TacgError

if TYPE_CHECKING:
    from tacg.canvas import Canvas

EPILOG = """[bold]Examples[/bold]

tacg trace "Mia has 12 apples. On Monday she buys 4 more. How many apples does Mia have now?"

tacg trace --task pocket-sudoku --policy confidence --policy tacg      two decoders on one problem, side by side

tacg trace runs/trace/tacg.jsonl runs/trace/confidence.jsonl           traces recorded before

tacg trace runs/trace/confidence.jsonl --replay tacg                   what would TACG have done with these signals?"""


def main(
    what: Annotated[list[str] | None, typer.Argument(help="A prompt, or one or two .jsonl traces.")] = None,
    task: Annotated[
        str | None, typer.Option("--task", "-t", help="Use a problem of this task instead of a prompt.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed that selects the problem.", min=0)] = 0,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", "-p", help="One or two policies; default: tacg.")
    ] = None,
    setting: SettingOptions = None,
    model: Model = DEFAULT_MODEL,
    other: Annotated[
        str | None, typer.Option("--replay", help="Show what this policy would do with the recorded signals.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for the traces and player.html.")] = Path("runs/trace"),
    as_json: Json = False,
) -> None:
    """Record traces and write a player, or show existing traces."""
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
        files = _record(words, task, seed, policy or ["tacg"], setting or [], model, out)
    traces = [read_trace(file) for file in files]
    if other is not None:
        traces = [traces[0], replay(traces[0], other)]
    player = write_player(out / "player.html", traces)
    typer.secho(f"player: {player}", err=True)
    if as_json:
        print_json({"traces": [str(file) for file in files], "player": str(player)})


def _record(
    words: list[str], task: str | None, seed: int, policies: list[str], settings: list[str], model: str, out: Path
) -> list[Path]:
    """Decode the prompt with each policy; the files of the traces."""
    from tacg.experiments.compare import takes
    from tacg.experiments.evaluate import settings_of
    from tacg.tasks import get_task
    from tacg.trace import record

    if (task is None) == (len(words) != 1):
        raise TacgError(f"Say what to trace: one prompt, or --task, or .jsonl files; got {len(words)} words.")
    prompt: str | list[dict[str, str]] | Canvas = words[0] if words else ""
    shared = shared_settings(policies, settings)
    if task is not None:
        (problem,) = get_task(task).problems("test", 1, seed)
        prompt = problem.asked
    llm, files = load_model(model), []
    for spec in policies:
        file = out / f"{spec.replace('/', '-').replace(':', '-')}.jsonl"
        mine = takes(spec, shared)
        if task is not None:
            mine = {**settings_of(get_task(task), spec, mine), **problem.held}
        for event in record(llm, prompt, spec, file, settings=mine):
            del event
        typer.secho(f"trace: {file}", err=True)
        files.append(file)
    return files
