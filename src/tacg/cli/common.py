"""What several verbs share."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacg.errors import TacgError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tacg.knobs import Knob
    from tacg.llm import LLM


DEFAULT_MODEL = "tiny"

# Options that several verbs take, in the same words.
Model = Annotated[str, typer.Option("--model", "-m", help="Built-in name, directory or hub id.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="NAME=VALUE", help="Any knob of the policy or the decode; repeatable."),
]
BatchSize = Annotated[int, typer.Option(help="Rows decoded together.", min=1)]
Seed = Annotated[int, typer.Option(help="Which problems.", min=0)]
Split = Annotated[str, typer.Option(help="train, dev or test.")]
Json = Annotated[bool, typer.Option("--json", help="Last line of stdout is one JSON document.")]


def parse_settings(policy: str, pairs: Iterable[str]) -> dict[str, Any]:
    """`name=value` words as typed settings of the policy or of the decode."""
    from tacg.policies import get_policy

    known = get_policy(policy).knobs()
    return dict(parse_value(known, pair) for pair in pairs)


def parse_value(policy_knobs: Mapping[str, Knob], pair: str) -> tuple[str, Any]:
    """One `name=value` as a typed setting of a policy with these knobs, or of the decode."""
    from tacg.engine.request import Decode

    known = Decode().knobs() | dict(policy_knobs)
    name, equals, value = pair.partition("=")
    if not equals:
        raise TacgError(f"A setting must be written name=value, got {pair!r}.")
    if name == "suppress":
        return name, tuple(_id(word) for word in value.split(","))
    if name not in known:
        raise unknown("setting", name, [*known, "suppress"])
    return name, known[name].parse(value)


def load_model(name: str, *, dtype: str = "float32", device: str = "cpu") -> LLM:
    """Load a model; a built-in one says first what it is."""
    from tacg.llm import load
    from tacg.models.loading import BUILT_IN

    if name in BUILT_IN:
        typer.secho(f"{name}: {BUILT_IN[name]}", dim=True, err=True)
    return load(name, dtype=dtype, device=device)


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar on stderr with the running accuracy; call what it gives with each item's correctness."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        seen: dict[str, list[bool]] = {}

        def tick(correct: bool, part: str = title) -> None:
            seen.setdefault(part, []).append(correct)
            share = 100 * sum(seen[part]) / len(seen[part])
            bar.update(task, advance=1, description=f"{part} · {share:.0f} % right")

        yield tick


def _id(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise TacgError(f"`suppress` must be token ids with commas between, got {word!r}.") from None


def print_json(document: Any) -> None:
    """One JSON document as the last line of stdout."""
    typer.echo(json.dumps(document))
