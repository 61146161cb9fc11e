"""Find good knobs of a policy for a model and a task, or for your own prompts."""

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
    Labels,
    MaybeTask,
    Model,
    Out,
    PolicyName,
    Prompts,
    Quantize,
    Quick,
    Seed,
    SettingOptions,
    TaskKnobs,
    Verifier,
    as_typed,
    load_model,
    load_task,
    parse_settings,
    ready_directory,
)
from tacg.cli.shown import print_json, progress, publish, show_tables
from tacg.errors import TacgError

if TYPE_CHECKING:
    from tacg.tasks import Task

EPILOG = """[bold]Examples[/bold]

tacg tune --task pocket-math --policy tacg --trials 40

tacg tune --task pocket-math --no-labels                          agreement with one token per step instead of grades

tacg tune --prompts mine.txt --model ./LLaDA-8B-Instruct --set gen_length=256      your own prompts, one per line

tacg eval --task pocket-math --policy tacg:runs/tune/pocket-math.tacg.toml"""


def main(
    task: MaybeTask = None,
    prompts: Prompts = None,
    policy: PolicyName = "tacg",
    only: Annotated[list[str] | None, typer.Option("--only", help="Tune only these knobs; repeatable.")] = None,
    trials: Annotated[int, typer.Option(help="Number of settings to try.", min=1)] = 40,
    n: Annotated[int, typer.Option(help="Problems of the dev split per trial.", min=1)] = 100,
    seed: Seed = 0,
    labels: Labels = True,
    give: Annotated[float, typer.Option(help="Quality to give up for speed, as a fraction.", min=0, max=1)] = 0.01,
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
    out: Out = Path("runs/tune"),
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Search knobs for quality and few steps; print the Pareto front and write a preset that every command accepts.

    Knobs given with --set keep their value. With --prompts there are no labels.
    """
    from tacg.experiments.evaluate import lengths_for
    from tacg.experiments.grid import Sample
    from tacg.experiments.tune import (
        by_agreement,
        by_labels,
        choose,
        defaults,
        space_of,
        table,
        tune,
        write_preset,
    )
    from tacg.records.plots import draw_trials
    from tacg.records.rows import Ledger
    from tacg.records.stats import front

    if (task is None) == (prompts is None):
        raise TacgError("Give a task or prompts to tune on: --task or --prompts.")
    trials, n = (min(trials, 4), min(n, 8)) if quick else (trials, n)
    fixed = parse_settings(policy, setting, cache)
    space = {name: values for name, values in space_of(policy, only or ()).items() if name not in fixed}
    ledger = Ledger(ready_directory(out) / "rows.jsonl")
    chosen_task = load_task(task, data, knob, model) if task else None
    asked, decode, what = asked_of(chosen_task, prompts, n, seed)
    llm = load_model(
        model, dtype=dtype, device=device, verifier=verifier, quantize=quantize, compiled=compiled, graphs=graphs
    )
    with progress("tuning", trials * n) as tick:
        if chosen_task is not None and labels:
            judge = by_labels(llm, chosen_task, policy, Sample(n, seed, "dev", batch_size), ledger, tick)
        else:
            judge, n = (
                by_agreement(llm, asked, policy, lengths_for(llm, decode) | fixed, ledger, tick, batch_size),
                len(asked),
            )
        rows = tune(
            lambda knobs, name: judge(fixed | dict(knobs), name), space, trials, seed, [defaults(policy, space)]
        )
    chosen = choose(rows, give)
    name = f"{what}.{policy.partition(':')[0]}{'' if prompts is None and labels else '.no-labels'}.toml"
    about = f"tacg tune: {what}, model {model}, {trials} trials of {n}, seed {seed}, quality {chosen['quality']:.4f}, "
    about += f"{chosen['steps']:.1f} steps"
    preset = write_preset(out / name, policy, fixed | chosen["settings"], about)
    goal = "accuracy" if labels and prompts is None else "agreement with one token per step"
    best = table(rows, chosen, f"{what} · {policy} · the front of {trials} trials (quality: {goal})")
    if as_json:
        keep = ("quality", "steps", "settings")
        short = [{key: row[key] for key in keep} for row in front(rows)]
        print_json({"front": short, "chosen": {key: chosen[key] for key in keep}, "preset": str(preset)})
    else:
        show_tables([best])
    publish("Tuning", rows, [best], {"trials.png": draw_trials}, out)
    typer.secho(f"preset: {preset}   use it as --policy {as_typed(policy.partition(':')[0])}:{preset}", err=True)


def asked_of(task: Task | None, prompts: Path | None, n: int, seed: int) -> tuple[list[Any], dict[str, int], str]:
    """Prompts or canvases without labels, the lengths to decode them with, and what to call them."""
    from tacg.tasks.prompts import OwnPrompts

    chosen = task or OwnPrompts(str(prompts))
    return [problem.asked for problem in chosen.problems("dev", n, seed)], dict(chosen.decode), chosen.name
