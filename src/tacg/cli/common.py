"""Options that several verbs share, each defined once, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacg.cli.complete import models, policies, tasks
from tacg.errors import TacgError, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tacg.knobs import Knob
    from tacg.llm import LLM
    from tacg.tasks import Task


DEFAULT_MODEL = "pocket"


def own_policies(ctx: typer.Context, value: Any) -> Any:
    """Load policies given as `file.py:Class`; from then on they are known by their name in the registry."""
    if not value or ctx.resilient_parsing:  # the shell asks for completions
        return value
    return own_policy(value) if isinstance(value, str) else [own_policy(each) for each in value]


def own_policy(spec: str) -> str:
    """A policy's name in the registry; for `file.py:Class`, the file is run first."""
    if ".py" not in spec:
        return spec  # torch need not be imported to know this
    from tacg.policies import load_own

    named, typed = load_own(spec)
    if typed:
        _TYPED[named.partition(":")[0].rpartition("+")[2]] = typed
    return named


_TYPED: dict[str, str] = {}  # own policies as they were typed, by their names


def as_typed(spec: str) -> str:
    """A policy's name for another process: with its file, if it came from one."""
    name, colon, preset = spec.partition(":")
    wrappers, plus, last = name.rpartition("+")
    return f"{wrappers}{plus}{_TYPED.get(last, last)}{colon}{preset}"


def policy_option(about: str, *names: str) -> Any:
    """A `--policy` option: `about` says what it is for, and what happens without it."""
    own = f"{about} See [cyan]tacg policies[/cyan]; a policy of your own: file.py:Class."
    return typer.Option(*(names or ("--policy", "-p")), help=own, callback=own_policies, autocompletion=policies)


# Options that several verbs take, in the same words.
Model = Annotated[
    str, typer.Option("--model", "-m", help="Built-in model, judge, directory or hub id.", autocompletion=models)
]
Verifier = Annotated[
    str | None,
    typer.Option(
        help="For apd: directory or hub id of an autoregressive model with the same tokenizer; pocket has one."
    ),
]
Device = Annotated[
    str, typer.Option("--device", help="cpu, cuda, cuda:1, mps, …; auto: a GPU if there is one, otherwise the CPU.")
]
Quantize = Annotated[
    str | None, typer.Option("--quantize", help="int8 or int4: store the weights of matrix products in 8 or 4 bits.")
]
Compiled = Annotated[
    bool, typer.Option("--compile", help="Pass the layers through torch.compile; the first forward takes a while then.")
]
Graphed = Annotated[
    bool, typer.Option("--graphs", help="Capture steps as CUDA graphs and replay them; ignored without CUDA.")
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="float32, bfloat16 or float16; auto: the checkpoint's own if it is fast on the device, otherwise float32.",
    ),
]
SettingOptions = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="NAME=VALUE", help="Any knob of the policy or the decode; repeatable."),
]
CacheMode = Annotated[
    str | None,
    typer.Option(
        "--cache", help="Keys and values to keep: auto (exact), none, block, or prefix and dual, which are approximate."
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="[TASK=]FILE",
        help="File of a benchmark (gsm8k, math500, humaneval, mbpp); repeatable; default: download it.",
    ),
]
TaskKnobs = Annotated[
    list[str] | None, typer.Option("--knob", "-k", metavar="NAME=VALUE", help="Any knob of the task; repeatable.")
]
BatchSize = Annotated[int, typer.Option(help="Rows decoded together.", min=1)]
TaskName = Annotated[str, typer.Option("--task", "-t", help="See [cyan]tacg tasks[/cyan].", autocompletion=tasks)]
MaybeTask = Annotated[
    str | None, typer.Option("--task", "-t", help="See [cyan]tacg tasks[/cyan].", autocompletion=tasks)
]
Tasks = Annotated[
    list[str] | None,
    typer.Option("--task", "-t", help="Task to run, see `tacg tasks`; repeatable; default: all.", autocompletion=tasks),
]
PolicyName = Annotated[str, policy_option("How tokens are committed.")]
N = Annotated[int, typer.Option(help="Problems per task.", min=1)]
Out = Annotated[Path, typer.Option(help="Directory for rows, plots and page; existing rows are not decoded again.")]
Quick = Annotated[bool, typer.Option("--quick", help="Quick look: few problems, few settings.")]
Seed = Annotated[int, typer.Option(help="Seed that selects the problems.", min=0)]
Split = Annotated[str, typer.Option(help="Split of the problems: train, dev or test.")]
Prompts = Annotated[
    Path | None, typer.Option(help="A file with one prompt per line instead; one with holes (⟨8⟩) is filled.")
]
Labels = Annotated[
    bool, typer.Option("--labels/--no-labels", help="Grade answers, or measure agreement with one token per step.")
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show the canvas while it is being filled in.")]
Delay = Annotated[float, typer.Option(help="Seconds between frames of --watch.", min=0)]
Jobs = Annotated[int, typer.Option(help="Number of processes; on few cores faster than threads.", min=1)]
Share = Annotated[str, typer.Option(hidden=True, help="I/N: only every N-th cell, for --jobs.")]
Redraw = Annotated[bool, typer.Option("--redraw", help="Only draw existing rows; decode nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document as the last line of stdout.")]


def words_of(**options: Any) -> list[str]:
    """Options as command-line words, for a process that does part of this one's work."""
    words: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [flag] * value
        elif isinstance(value, list | tuple):
            words += [word for each in value for word in (flag, str(each))]
        elif value is not None:
            words += [flag, str(value)]
    return words


def parse_settings(policies: str | Sequence[str], pairs: Sequence[str] | None, cache: str | None) -> dict[str, Any]:
    """`--set` and `--cache` as typed settings that at least one of the policies, or the decode, knows."""
    from tacg.policies import get_policy

    known: dict[str, Knob] = {}
    for spec in [policies] if isinstance(policies, str) else policies:
        known |= get_policy(spec).knobs()
    words = [*(pairs or []), *([f"cache={cache}"] if cache is not None else [])]
    return dict(parse_value(known, pair) for pair in words)


def parse_value(policy_knobs: Mapping[str, Knob], pair: str) -> tuple[str, Any]:
    """One `name=value` as a typed setting of a policy with these knobs, or of the decode."""
    from tacg.engine.request import Decode

    name, equals, value = pair.partition("=")
    if name == "suppress" and equals:
        return name, tuple(_id(word) for word in value.split(","))
    return _typed(pair, Decode().knobs() | dict(policy_knobs), "setting", ("suppress",))


def _typed(pair: str, known: Mapping[str, Knob], what: str, others: Sequence[str] = ()) -> tuple[str, Any]:
    """One `name=value`, parsed by the knob of that name; `others` are names that are valid, too."""
    name, equals, value = pair.partition("=")
    if not equals:
        raise TacgError(f"A {what} must be written name=value, got {pair!r}.")
    if name not in known:
        raise unknown(what, name, [*known, *others])
    return name, known[name].parse(value)


def load_task(
    name: str, data: Sequence[str] | None = None, pairs: Sequence[str] | None = None, model: str | None = None
) -> Task:
    """A task with its knobs as typed: `name=value` words, and the file of a benchmark."""
    return load_tasks([name], data, pairs, model)[0]


def tasks_asked(names: Sequence[str] | None, model: str, quick: bool = False) -> list[str]:
    """The tasks that were named; otherwise those that the model was made for, and pocket's for any other model."""
    from tacg.models.judges import JUDGES
    from tacg.tasks import task_names

    if names:
        return list(names)
    judge = JUDGES.get(model)
    own = [judge.task] if judge and judge.task else task_names(model)
    return own[-1:] if quick else own


def load_tasks(
    names: Sequence[str],
    data: Sequence[str] | None = None,
    pairs: Sequence[str] | None = None,
    model: str | None = None,
) -> list[Task]:
    """Tasks with their knobs as typed. Each knob goes to every task that has it, each file to its benchmark.

    If the model is one of the two pockets, and the other one was trained on a task, people are told.
    """
    from tacg.tasks import get_task, task_names

    other = {"pocket": "pocket-free", "pocket-free": "pocket"}.get(model or "")
    for name in names:
        if other and name.removesuffix("-hard") in task_names(other):
            typer.secho(f"{model} was not trained on {name}, {other} was: add --model {other}.", fg="yellow", err=True)

    files, own = benchmark_files(names, data or []), task_knobs(names, pairs)
    return [get_task(name, **own[name] | ({"data": files[name]} if name in files else {})) for name in names]


def task_knobs(names: Sequence[str], pairs: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """The values of `--knob` by task: each goes to every task that has the knob."""
    from tacg.tasks import get_task

    known = {name: get_task(name).knobs() for name in names}
    every = {knob: each for knobs in known.values() for knob, each in knobs.items()}
    what = f"knob of {names[0]}" if len(names) == 1 else "knob of these tasks"
    values = dict(_typed(pair, every, what) for pair in pairs or [])
    return {name: {knob: value for knob, value in values.items() if knob in known[name]} for name in names}


def benchmark_files(names: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    """The files of `--data` by task. `TASK=FILE` names the task; FILE alone is for the only task that takes one."""
    from tacg.tasks import all_names, benchmark_names, get_task

    takers = [name for name in names if "data" in get_task(name).knobs()]
    files = {}
    for word in words:
        name, equals, file = word.partition("=")
        if not equals or name not in all_names():
            if len(takers) > 1:
                raise TacgError(f"Write --data TASK=FILE, as several tasks take one: {', '.join(takers)}; got {word}.")
            name, file = (takers or list(names))[0], word
        if name not in takers:
            why = "is none of the tasks" if name not in names else "is generated and takes no --data"
            raise TacgError(f"{name} {why}; {', '.join(takers or benchmark_names())} may have one.")
        files[name] = file
    return files


def load_model(
    name: str, *, dtype: str = "float32", device: str = "cpu", verifier: str | None = None, quantize: str | None = None,
    compiled: bool = False, graphs: bool = False,
) -> LLM:  # fmt: skip
    """Load a model, with a progress bar; a built-in one says first what it is."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from tacg.llm import load
    from tacg.models.loading import BUILT_IN

    if name in BUILT_IN:
        typer.secho(f"{name}: {BUILT_IN[name]}", dim=True, err=True)
        return load(
            name, dtype=dtype, device=device, verifier=verifier, quantize=quantize, compile=compiled, graphs=graphs
        )
    with Progress(
        TextColumn("loading"), BarColumn(), DownloadColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        line = bar.add_task("", total=None)
        return load(
            name, dtype=dtype, device=device, verifier=verifier, quantize=quantize, compile=compiled, graphs=graphs,
            tell=lambda done, total: bar.update(line, completed=done, total=total),
        )  # fmt: skip


def hint_at_tasks(model: str, prompts: Sequence[str]) -> bool:
    """If a prompt is unlike anything that a built-in model knows, say what it knows; returns whether it was said."""
    from tacg.tasks.familiar import hint, is_familiar, knows

    strange = knows(model) is not None and not all(is_familiar(prompt, model) for prompt in prompts)
    if strange:
        typer.secho(hint(model), fg="yellow", err=True)
    return strange


def _id(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise TacgError(f"`suppress` must be token ids separated by commas, got {word!r}.") from None


def ready_directory(out: Path) -> Path:
    """Raise before anything is decoded unless rows and page can be written there."""
    from tacg.files import make_room

    for name in ("rows.jsonl", "page.html"):
        make_room(out / name)
    return out
