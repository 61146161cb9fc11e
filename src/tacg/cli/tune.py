"""Find good knobs of a policy for a model and a task, or for your own prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    BatchSize,
    Json,
    Model,
    Out,
    Quick,
    Seed,
    load_model,
    parse_settings,
    print_json,
    progress,
    publish,
    ready_directory,
    show_tables,
)
from tacg.errors import TacgError

EPILOG = """[bold]Examples[/bold]

tacg tune --task pocket-math --policy tacg --trials 40

tacg tune --task pocket-math --no-labels                          agreement with one token per step instead of grades

tacg tune --prompts mine.txt --model ./LLaDA-8B-Instruct --set gen_length=256      your own prompts, one per line

tacg eval --task pocket-math --policy tacg:runs/tune/pocket-math.tacg.toml"""


def main(
    task: Annotated[str | None, typer.Option("--task", "-t", help="See [cyan]tacg tasks[/cyan].")] = None,
    prompts: Annotated[Path | None, typer.Option(help="A file with one prompt per line; implies --no-labels.")] = None,
    policy: Annotated[str, typer.Option("--policy", "-p", help="See [cyan]tacg policies[/cyan].")] = "tacg",
    only: Annotated[list[str] | None, typer.Option("--knob", "-k", help="Tune only these knobs; repeatable.")] = None,
    trials: Annotated[int, typer.Option(help="Number of settings to try.", min=1)] = 40,
    n: Annotated[int, typer.Option(help="Problems of the dev split per trial.", min=1)] = 100,
    seed: Seed = 0,
    labels: Annotated[
        bool, typer.Option("--labels/--no-labels", help="Grade answers, or measure agreement with one token per step.")
    ] = True,
    give: Annotated[float, typer.Option(help="Quality to give up for speed, as a fraction.", min=0, max=1)] = 0.01,
    model: Model = DEFAULT_MODEL,
    setting: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="NAME=VALUE", help="Keep this knob fixed; repeatable.")
    ] = None,
    batch_size: BatchSize = 32,
    out: Out = Path("runs/tune"),
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Search knobs for quality and few steps; print the front, write a preset that every command takes."""
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
    from tacg.tasks import get_task

    if (task is None) == (prompts is None):
        raise TacgError("Say what to tune on: either --task or --prompts.")
    trials, n = (min(trials, 4), min(n, 8)) if quick else (trials, n)
    fixed = parse_settings(policy, setting or [])
    space = {name: values for name, values in space_of(policy, only or ()).items() if name not in fixed}
    ledger = Ledger(ready_directory(out) / "rows.jsonl")
    asked, decode, what = asked_of(task, prompts, n, seed)
    llm = load_model(model)
    with progress("tuning", trials * n) as tick:
        if prompts is None and labels:
            judge = by_labels(llm, get_task(str(task)), policy, Sample(n, seed, "dev", batch_size), ledger, tick)
        else:
            judge, n = by_agreement(llm, asked, policy, decode | fixed, ledger, tick, batch_size), len(asked)
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
    typer.secho(f"preset: {preset}   use it as --policy {policy.partition(':')[0]}:{preset}", err=True)


def asked_of(task: str | None, prompts: Path | None, n: int, seed: int) -> tuple[list[Any], dict[str, int], str]:
    """Prompts or canvases without labels, the lengths to decode them with, and what to call them."""
    from tacg.tasks import get_task
    from tacg.tasks.prompts import OwnPrompts

    chosen = get_task(str(task)) if prompts is None else OwnPrompts(str(prompts))
    return [problem.asked for problem in chosen.problems("dev", n, seed)], dict(chosen.decode), chosen.name
