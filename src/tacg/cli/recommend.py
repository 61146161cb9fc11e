"""Recommend a decoder and its knobs for a model and a task, or for your own prompts."""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    BatchSize,
    CacheMode,
    Data,
    Device,
    Dtype,
    Json,
    Labels,
    MaybeTask,
    Model,
    Out,
    Prompts,
    Quantize,
    Seed,
    SettingOptions,
    TaskKnobs,
    Verifier,
    as_typed,
    load_model,
    load_task,
    parse_settings,
    policy_option,
    ready_directory,
)
from tacg.cli.parallel_runs import Workers
from tacg.cli.shown import print_json, progress, show_tables
from tacg.errors import TacgError, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tacg.experiments.grid import Tick
    from tacg.experiments.recommend import Candidate, Problems
    from tacg.records.rows import ResultRow
    from tacg.tasks import Task

EPILOG = """[bold]Examples[/bold]

tacg recommend --task pocket-math

tacg recommend --prompts mine.txt --model ./LLaDA-8B-Instruct --device cuda --minutes 60 --set gen_length=256

tacg recommend --task pocket-code -p confidence -p klass -p tacg --give 0.05

tacg eval --task pocket-math --policy tacg:runs/recommend/pocket-math.toml      use the preset, if it recommends tacg"""


def main(
    task: MaybeTask = None,
    prompts: Prompts = None,
    labels: Labels = True,
    model: Model = DEFAULT_MODEL,
    verifier: Verifier = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    quantize: Quantize = None,
    data: Data = None,
    knob: TaskKnobs = None,
    setting: SettingOptions = None,
    cache: CacheMode = None,
    minutes: Annotated[float, typer.Option(help="Time budget.", min=0)] = 9.0,
    give: Annotated[float, typer.Option(help="Quality to give up for speed, as a fraction.", min=0, max=1)] = 0.02,
    cost: Annotated[str, typer.Option(help="What to save: forwards, steps or positions.")] = "forwards",
    policy: Annotated[
        list[str] | None, policy_option("Policy to try; repeatable; default: a short list; all: every decoder.")
    ] = None,
    seed: Seed = 0,
    batch_size: BatchSize = 32,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Number of processes, each with the model; default: one per core if built in, otherwise 1.", min=1
        ),
    ] = None,
    out: Out = Path("runs/recommend"),
    as_json: Json = False,
) -> None:
    """Try decoders on the same problems, promising ones on more; name the fastest that is nearly as good as the best.

    Without labels, quality is agreement with one token per step. Knobs given with --set keep their value.
    """
    from tacg.experiments.arena import decoders
    from tacg.experiments.recommend import COSTS, NEAR, SHORT_LIST, Race, candidates_of, evidence, shown, unseen_table
    from tacg.experiments.tune import write_preset
    from tacg.models.loading import BUILT_IN
    from tacg.policies import get_policy

    if (task is None) == (prompts is None):
        raise TacgError("Give a task or prompts to recommend for: --task or --prompts.")
    if cost not in COSTS:
        raise unknown("cost", cost, COSTS)
    graded = labels and prompts is None
    named = decoders() if policy == ["all"] else policy or SHORT_LIST
    specs = list(dict.fromkeys(get_policy(each).label for each in named))
    fixed = parse_settings(specs, setting, cache)
    rows_file = ready_directory(out) / "rows.jsonl"
    chosen_task = load_task(task, data, knob, model) if task else None
    lengths, what, asked = _asked(chosen_task, prompts, labels, seed)
    candidates = candidates_of(specs, lengths, fixed)
    made = functools.partial(
        _problems, chosen_task if graded else None, asked, lengths, rows_file, seed, batch_size,
        model, {"dtype": dtype, "device": device, "verifier": verifier, "quantize": quantize},
    )  # fmt: skip
    jobs = jobs or (os.cpu_count() or 1 if model in BUILT_IN and device == "cpu" else 1)
    with progress("recommending", None) as tick, contextlib.ExitStack() as stack:
        problems = made(tick=tick) if jobs == 1 else Apart(stack.enter_context(Workers(made, jobs)), tick)
        race = Race(problems, give, 60 * minutes, jobs=jobs, cost=cost)
        chosen = race.run(candidates)
        rows = shown(race, chosen, fixed)
    goal = "accuracy" if graded else "agreement with one token per step"
    rule = f"the fewest {cost} at most {100 * give:g} points below the best"
    tried, (quality, paid) = len(candidates) - len(race.untried) - len(race.hopeless), chosen.means
    about = (
        f"tacg recommend: {what}, model {model}, {rule} of {tried} settings; {goal} {quality:.4f}, {paid:.1f} {cost} "
    )
    about += f"on {race.seen} problems, seed {seed}"
    preset = write_preset(out / f"{what}{'' if graded else '.no-labels'}.toml", chosen.spec, chosen.settings, about)
    if as_json:
        print_json({
            "decoder": chosen.spec, "settings": chosen.settings, "quality": quality, cost: paid,
            "n": race.seen, "tried": tried, "untried": len(race.untried), "hopeless": len(race.hopeless),
            "refused": race.refused, "preset": str(preset),
            "unseen": [{name: each[name] for name in ("name", "n", "quality", cost)} for each in rows],
        })  # fmt: skip
    else:
        title = f"{what} · sought: {rule} of {tried} settings · {race.seen} problems · quality: {goal}"
        note = f"as good: at most {100 * give:g} points worse than what is sought, at most {100 * NEAR:g} % more {cost}"
        show_tables([evidence(race, title), unseen_table(rows, cost)], note)
        typer.echo(f"Use {chosen.name}.")
    for spec, reason in race.refused.items():
        typer.secho(f"left out: {spec}: {reason}", fg="yellow", err=True)
    if race.untried:
        typer.secho(
            f"no time for {len(race.untried)} of {len(candidates)} settings; raise --minutes to try more", err=True
        )
    typer.secho(f"preset: {preset}   use it as --policy {as_typed(chosen.spec)}:{preset}", err=True)


def _asked(
    task: Task | None, prompts: Path | None, labels: bool, seed: int
) -> tuple[dict[str, Any], str, Sequence[Any]]:
    """Lengths of the answers, a name for what is recommended for, and the prompts if nothing is graded."""
    from tacg.cli.tune import asked_of
    from tacg.experiments.recommend import MOST, split_to_choose_on

    if task is None:
        asked, lengths, what = asked_of(None, prompts, MOST, seed)
        return lengths, what, asked
    problems = [] if labels else task.problems(split_to_choose_on(task), MOST, seed)
    return dict(task.decode), task.name, [each.asked for each in problems]


def _problems(
    task: Task | None, asked: Sequence[Any], lengths: dict[str, Any], rows: Path, seed: int, batch_size: int,
    model: str, loading: Mapping[str, Any], tick: Tick | None = None,
) -> Problems:  # fmt: skip
    """Graded problems of a task, or prompts, for a model that is loaded here: each worker loads its own."""
    from tacg.experiments.evaluate import lengths_for
    from tacg.experiments.recommend import Agreeing, Graded
    from tacg.llm import load
    from tacg.records.rows import Ledger

    llm = load_model(model, **loading) if tick else load(model, **loading)  # a worker shows no progress
    ledger = Ledger(rows)
    if task is not None:
        return Graded(llm, task, ledger, seed, batch_size, tick)
    return Agreeing(llm, asked, lengths_for(llm, lengths), ledger, batch_size, tick)


@dataclass(frozen=True)
class Apart:
    """The same problems, decoded by other processes."""

    workers: Workers
    tick: Tick

    @property
    def most(self) -> int:
        """How many there are to choose on."""
        found: int = self.workers.ask("most")
        return found

    def attempt(self, candidate: Candidate, n: int, skip: int) -> ResultRow:
        """Decode problems to choose on."""
        return self._ticked(candidate, self.workers.ask("attempt", candidate, n, skip))

    def unseen(self, candidate: Candidate, n: int, seen: int) -> ResultRow:
        """Decode others."""
        return self._ticked(candidate, self.workers.ask("unseen", candidate, n, seen))

    def _ticked(self, candidate: Candidate, row: ResultRow) -> ResultRow:
        for quality in row["item_quality"]:
            self.tick(candidate.name, quality == 1)
        return row
