"""Sweep one or two knobs and measure the effect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    N,
    Quantize,
    Quick,
    Seed,
    SettingOptions,
    Split,
    TaskKnobs,
    Tasks,
    Verifier,
    load_model,
    load_tasks,
    parse_settings,
    parse_value,
    policy_option,
    ready_directory,
    tasks_asked,
)
from tacg.cli.shown import present, progress
from tacg.errors import TacgError

if TYPE_CHECKING:
    from tacg.experiments.sweep import Axis

# Sweeps with a name: policies, first axis, second axis.
NAMED: dict[str, tuple[list[str], str, str]] = {
    "frontier": (["confidence", "tacg", "klass", "tacg+klass"], "threshold=0.5,0.6,0.7,0.8,0.9,0.95,0.98", ""),
    "fig3": (["tacg"], "support_lambda=0,0.05,0.5,2", "tau_floor=0.5,0.6,0.7,0.8,0.9"),
    "fig4": (["tacg"], "m_base+m_extra=1,2,3,4", "beta=0,0.5,0.8,0.95"),
}
EPILOG = """[bold]Examples[/bold]

tacg sweep frontier --n 200          accuracy over TPF for each policy as its threshold changes

tacg sweep fig3 --task pocket-math   the paper's Fig. 3: support weight x floor; fig4: gate length x EMA decay

tacg sweep --policy tacg --x k_extra=0,1,2,4,8 --y tau_floor=0.5,0.7,0.9"""


def main(
    name: Annotated[str | None, typer.Argument(help=f"One of {', '.join(NAMED)}; or use --x.")] = None,
    task: Tasks = None,
    policy: Annotated[list[str] | None, policy_option("Policy to sweep; repeatable.")] = None,
    x: Annotated[
        str, typer.Option(metavar="KNOB=VALUES", help="Comma-separated values; a+b=… changes two knobs together.")
    ] = "",
    y: Annotated[str, typer.Option(metavar="KNOB=VALUES", help="A second axis; draws heat maps.")] = "",
    n: N = 200,
    seed: Seed = 0,
    split: Split = "dev",
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
    out: Annotated[
        Path | None, typer.Option(help="Directory for rows, plots and page; default: runs/sweep-NAME.")
    ] = None,
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Sweep one knob (one frontier per policy) or two (heat maps)."""
    from tacg.experiments.grid import Sample
    from tacg.experiments.sweep import sweep, tables
    from tacg.records.plots import draw_frontier, draw_heat
    from tacg.records.rows import Ledger

    if name is not None and name not in NAMED:
        from tacg.errors import unknown

        raise unknown("sweep", name, NAMED)
    policies, first, second = NAMED.get(name or "", (["tacg"], "", ""))
    policies, first, second = policy or policies, x or first, y or second
    if not first:
        raise TacgError(f"Nothing to sweep: name one of {', '.join(NAMED)}, or give --x knob=values.")
    across, up = _axis(policies, first, quick), _axis(policies, second, quick) if second else None
    if up and len(policies) > 1:
        raise TacgError(f"Heat maps show one policy, got {len(policies)}: leave out --y, or name one with --policy.")
    out = out or Path(f"runs/sweep-{name or across.label}")
    tasks = load_tasks(tasks_asked(task, model, quick), data, knob, model)
    n = min(n, 12) if quick else n
    settings = parse_settings(policies, setting, cache)
    ledger = Ledger(ready_directory(out) / "rows.jsonl")
    llm = load_model(
        model, dtype=dtype, device=device, verifier=verifier, quantize=quantize, compiled=compiled, graphs=graphs
    )
    points = len(across.values) * (len(up.values) if up else 1) * len(policies) * len(tasks)
    with progress("sweep", n * points) as tick:
        sample = Sample(n, seed, split, batch_size)
        rows = sweep(llm, tasks, policies, across, up, sample, settings, ledger, tick)
    draw = {"heat.png": draw_heat} if up else {"frontier.png": draw_frontier}
    present(f"Sweep of {first}" + (f" against {second}" if second else ""), rows, tables(rows), draw, out, as_json)


def _axis(policies: list[str], text: str, quick: bool) -> Axis:
    """`a+b=1,2,3` as an axis, each value read as its knob reads it."""
    from tacg.experiments.sweep import Axis
    from tacg.policies import get_policy

    knobs, equals, values = text.partition("=")
    if not equals or not values:
        raise TacgError(f"An axis must be written knob=value,value,…, got {text!r}.")
    known = {name: knob for policy in policies for name, knob in get_policy(policy).knobs().items()}
    words = values.split(",")[:: 2 if quick else 1]
    names = tuple(knobs.split("+"))
    parsed = [[parse_value(known, f"{name}={word}")[1] for word in words] for name in names]
    return Axis(names, tuple(parsed[0]))
