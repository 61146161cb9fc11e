"""Decode a task's problems with a policy and grade the answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    BatchSize,
    CacheMode,
    Compiled,
    Data,
    Device,
    Dtype,
    Graphed,
    Json,
    Model,
    PolicyName,
    Quantize,
    Seed,
    SettingOptions,
    Split,
    TaskKnobs,
    TaskName,
    Verifier,
    as_typed,
    load_model,
    load_task,
    parse_settings,
)
from tacg.cli.shown import print_json, progress, show_tables
from tacg.errors import TacgError

if TYPE_CHECKING:
    from tacg.experiments.evaluate import Decoder
    from tacg.llm import LLM
    from tacg.tasks import Task

EPILOG = """[bold]Examples[/bold]

tacg eval --task pocket-math --policy tacg --n 200 --seed 7

tacg eval --task pocket-sudoku --n 1 --watch

tacg eval --task pocket-sudoku --policy confidence --set threshold=0.7 --json

tacg eval --task pocket-code --policy schedule --out runs/code.jsonl      one row per item, saved when it is graded

tacg eval --task pocket-code --policy schedule --out runs/code.jsonl --resume      continue after an interruption

tacg eval --task gsm8k --data gsm8k_test.jsonl --policy tacg:llada/gsm8k --model ./LLaDA-8B-Instruct --limit 1319

tacg eval --task gsm8k --policy tacg:llada/gsm8k --model ./LLaDA-8B-Instruct --ray auto --out runs/gsm8k.jsonl

tacg eval --task mbpp --knob subset=all --knob protocol=lm-eval --model ./LLaDA2.0-mini"""


def main(
    task: TaskName,
    policy: PolicyName = "tacg",
    n: Annotated[int, typer.Option("--n", "--limit", help="Maximum number of problems.", min=1)] = 100,
    seed: Seed = 0,
    split: Split = "test",
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
    batch_size: BatchSize = 32,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show the first problem while it is being decoded.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Results file: a header, then one row per item.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an existing results file.")] = False,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Decode on a Ray cluster: local, auto or HOST:PORT.")
    ] = None,
    cores: Annotated[int, typer.Option(help="With --ray and no GPUs: cores per replica.", min=1)] = 1,
    as_json: Json = False,
) -> None:
    """Grade a policy on a task."""
    from tacg.experiments.compare import tables
    from tacg.experiments.evaluate import evaluate
    from tacg.records.journal import refuse_unwritable
    from tacg.records.tables import provenance

    if resume and out is None:
        raise TacgError("--resume continues a results file: name it with --out FILE.")
    if out is not None:
        refuse_unwritable(out, resume=resume)
    chosen, settings = load_task(task, data, knob, model), parse_settings(policy, setting, cache)
    decoder: Decoder
    if ray is not None:
        from tacg.scale import Fleet

        if watch:
            raise TacgError("--watch shows a decode on this machine, --ray decodes elsewhere: use only one of them.")
        if verifier is not None:
            raise TacgError("--verifier is loaded on this machine, --ray decodes elsewhere: use only one of them.")
        if as_typed(policy) != policy:
            raise TacgError(f"--ray decodes elsewhere, where {as_typed(policy)} is not known: use only one of them.")
        if quantize is not None:
            raise TacgError("--quantize is not available with --ray yet: leave one of them out.")
        decoder = Fleet(model, address=ray, cores=cores, dtype=dtype)
    else:
        decoder = llm = load_model(
            model, dtype=dtype, device=device, verifier=verifier, quantize=quantize, compiled=compiled, graphs=graphs
        )
        if watch:
            _watch_first(llm, chosen, policy, seed, split, settings)
    title = f"{task} · {policy}"
    try:
        with progress(title, n) as tick:
            row = evaluate(
                decoder, chosen, policy, n=n, seed=seed, split=split, batch_size=batch_size, settings=settings,
                on_item=lambda item: tick(title, item.correct, item.tpf),
                on_known=lambda item: tick(title, item.correct, item.tpf, known=True), out=out, resume=resume,
            ).row  # fmt: skip
    except KeyboardInterrupt:
        if out is None:
            raise
        typer.secho(
            f"stopped; graded items are saved in {out}; run the same command with --resume to continue", err=True
        )
        raise typer.Exit(130) from None
    if as_json:
        print_json(row)
    else:
        show_tables(tables([row]), provenance([row]))


def _watch_first(llm: LLM, task: Task, policy: str, seed: int, split: str, settings: dict[str, Any]) -> None:
    """Show the first problem of the run: the question, its decode, the grade."""
    from tacg.cli.watch import watch_one
    from tacg.experiments.evaluate import settings_of

    (problem,) = task.problems(split, 1, seed)
    typer.secho(f"\n{problem.prompt}\n", bold=True, err=True)
    settings = {**settings_of(task, policy, settings, llm), **problem.held}
    output = watch_one(llm, problem.asked, policy, None, settings, delay=0.05)
    right = task.grade(problem, output.text).correct
    verdict = "right" if right else f"wrong, expected:\n{problem.answer}"
    typer.secho(
        f"{verdict} ({output.steps} steps, {output.tpf:.1f} tokens per forward)",
        fg="green" if right else "red",
        err=True,
    )
