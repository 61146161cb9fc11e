"""Decode one prompt, or several in one batch."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    BatchSize,
    CacheMode,
    Compiled,
    Delay,
    Device,
    Dtype,
    Graphed,
    Json,
    Model,
    PolicyName,
    Quantize,
    SettingOptions,
    Verifier,
    Watch,
    hint_at_tasks,
    load_model,
    parse_settings,
)
from tacg.cli.shown import print_json
from tacg.errors import TacgError

if TYPE_CHECKING:
    from tacg.llm import LLM
    from tacg.types import Output

EPILOG = """[bold]Examples[/bold]

tacg generate "$(tacg tasks pocket-math --bare)" --watch                            a question that pocket can answer

tacg tasks pocket-math --bare --n 3 | tacg generate - --policy tacg+klass --set k_extra=1         one prompt per line

tacg generate - --policy confidence --json < prompts.txt

tacg generate "Who wrote Faust?" --model ./LLaDA-8B-Instruct --device auto --dtype auto --schema answer.json

tacg generate "Who wrote Faust?" --policy apd --model ./Dream-7B --verifier ./Qwen2.5-0.5B

cat prompts.txt | tacg generate - --policy tacg:llada/gsm8k --model ./LLaDA-8B-Instruct"""


def main(
    prompts: Annotated[
        list[str], typer.Argument(help="Prompts; a single [cyan]-[/cyan] reads one prompt per line from stdin.")
    ],
    model: Model = DEFAULT_MODEL,
    verifier: Verifier = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    quantize: Quantize = None,
    compiled: Compiled = False,
    graphs: Graphed = False,
    policy: PolicyName = "tacg",
    setting: SettingOptions = None,
    cache: CacheMode = None,
    schema: Annotated[Path | None, typer.Option(help="File with a JSON schema that the answers must satisfy.")] = None,
    regex: Annotated[str | None, typer.Option(help="Regular expression that the answers must match.")] = None,
    choice: Annotated[list[str] | None, typer.Option("--choice", "-c", help="An answer to allow; repeatable.")] = None,
    watch: Watch = False,
    delay: Delay = 0.05,
    raw: Annotated[bool, typer.Option("--raw", help="Do not apply the chat template.")] = False,
    batch_size: BatchSize = 32,
    as_json: Json = False,
) -> None:
    """Decode prompts and print the answers."""
    settings = parse_settings(policy, setting, cache)
    settings |= {"schema": schema and _read_schema(schema), "regex": regex, "choices": choice or None}
    if prompts == ["-"]:
        prompts = [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    if not prompts:
        raise TacgError("No prompt: stdin was empty.")
    if watch and len(prompts) > 1:
        raise TacgError(f"--watch shows one prompt, got {len(prompts)}; leave it out or pass one.")

    llm = load_model(
        model, dtype=dtype, device=device, verifier=verifier, quantize=quantize, compiled=compiled, graphs=graphs
    )
    hint_at_tasks(model, prompts)
    chat = False if raw else None
    done: dict[int, Output] = {}  # filled as prompts finish, so that Ctrl-C loses no answer
    try:
        if watch:
            from tacg.cli.watch import watch_one

            done[0] = watch_one(llm, prompts[0], policy, chat, settings, delay)
        else:
            _in_batches(llm, prompts, policy, chat, settings, batch_size, done)
    except KeyboardInterrupt:
        typer.secho(f"stopped with {len(done)} of {len(prompts)} done", fg="yellow", err=True)
    if as_json:
        rows = [
            dataclasses.asdict(done[number]) | {"tpf": done[number].tpf, "prompt": number} for number in sorted(done)
        ]
        print_json({"model": model, "outputs": rows})
    else:
        _show(done, prompts, model, show_text=not watch)
    if len(done) < len(prompts):
        raise typer.Exit(130)


def _read_schema(path: Path) -> Any:
    from tacg import files

    return files.read_json(path, "JSON schema")


def _in_batches(
    llm: LLM, prompts: list[str], policy: str, chat: bool | None, settings: dict[str, Any], batch_size: int,
    done: dict[int, Output],
) -> None:  # fmt: skip
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=len(prompts) == 1) as bar:
        task = bar.add_task("", total=len(prompts))

        def keep(number: int, output: Output) -> None:
            done[number] = output
            bar.advance(task)

        llm.generate(prompts, policy, chat=chat, batch_size=batch_size, on_output=keep, **settings)


def _show(done: dict[int, Output], prompts: list[str], model: str, *, show_text: bool) -> None:
    from rich.console import Console

    notes = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    for number, output in sorted(done.items()):
        if len(prompts) > 1:
            notes.print(f"> {prompts[number]}", style="bold")
        if show_text:
            typer.echo(output.text)  # printed verbatim: it may be a program
        notes.print(
            f"{model} · {output.policy} · {len(output.tokens)} tokens · {output.steps} steps · "
            f"{output.forwards} forwards · {output.tpf:.2f} tokens per forward · {output.finish_reason}",
            style="dim",
        )
