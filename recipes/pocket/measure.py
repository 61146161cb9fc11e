"""Measure pocket on held-out problems: one row per task and decoder, and the model card and a plot drawn from them.

    python recipes/pocket/measure.py --model MODEL --n 500
    python recipes/pocket/measure.py --model AGES/model-age-1 AGES/model-age-2 --n 200 --brief

Rows go to `quality.jsonl` next to the weights, each as soon as it is done. If it is run again, only missing rows are
measured; rows of other weights are dropped.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress
from safetensors import safe_open

import tacg
from tacg.experiments.evaluate import evaluate
from tacg.records.flat import read_rows
from tacg.records.rows import write_rows
from tacg.tasks import free_names, get_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    Row = dict[str, Any]

SLOW, USUAL = ("schedule", {}), ("confidence", {"threshold": 0.9})  # one token per step; what most people use
DECODERS: list[tuple[str, dict[str, Any]]] = [
    SLOW,
    USUAL,
    *(("confidence", {"threshold": threshold}) for threshold in (0.95, 0.8, 0.7, 0.6, 0.5)),
    *((policy, {}) for policy in ("tacg", "klass", "tacg+klass")),
]
# The range of real models, in which pocket should be on every task that it was trained on.
ACCURACY, STEPS, TPF = (0.65, 0.85), 8, (2, 5)
CARD = """# {name}

A masked diffusion language model with LLaDA's architecture and {parameters:.1f} million parameters, trained from
scratch on two CPU cores for {step} steps (`recipes/pocket`). It knows the tasks in free wording (`tacg tasks`) and
nothing else; problems of the `-hard` tasks are harder than any in its training data.

Measured on {n} test problems per task (seed {seed}, test split, {hardware}); brackets are 95 % intervals. Written by
`recipes/pocket/measure.py` from `quality.jsonl`; the loss during training is in `loss.jsonl`.

The range that it is made for: one token per step is right in 65 to 85 % of cases, and confidence 0.9 needs at least
8 steps per block of 32 at 2 to 5 tokens per forward.

| task | one token per step, % | confidence 0.9: steps per block | tokens per forward | within |
|---|---|---|---|---|
{regime}

| task | decoder | accuracy % | steps | tokens per forward |
|---|---|---|---|---|
{rows}
"""


def plan(brief: bool) -> list[tuple[str, str, dict[str, Any]]]:
    """What is measured: every decoder on what was trained, two on harder tasks; `brief`: two, and no harder tasks."""
    tasks = [name for name in free_names() if not (brief and name.endswith("-hard"))]
    return [
        (task, policy, settings)
        for task in tasks
        for policy, settings in (DECODERS[:2] if brief or task.endswith("-hard") else DECODERS)
    ]


def measure(model: Path, n: int, seed: int, brief: bool, dtype: str = "float32") -> list[Row]:
    """All rows of these weights, those already in the file included."""
    path = model / "quality.jsonl"
    weights = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()[:12]
    known = [row for row in read_rows(path) if row["weights"] == weights] if path.exists() else []
    path.unlink(missing_ok=True)
    write_rows(path, known)
    llm = tacg.load(model, dtype=dtype)
    done = {(row["task"], row["decoder"], row["n"], row["seed"]): row for row in known}
    asked = plan(brief)
    with Progress(transient=True) as bar:
        for task, policy, settings in asked:
            key = (task, _label(policy, settings), n, seed)
            if key in done:
                continue
            line = bar.add_task(" · ".join(key[:2]), total=n)
            run = evaluate(
                llm, get_task(task), policy, n=n, seed=seed, settings=settings,
                on_item=lambda _, line=line: bar.advance(line),
            )  # fmt: skip
            bar.remove_task(line)
            done[key] = run.row | {"model": model.name, "decoder": key[1], "weights": weights, "age": age(model)}
            done[key]["steps_per_block"] = 32 * run.row["steps"] / run.row["settings"]["gen_length"]
            write_rows(path, [done[key]])
            print(_line(done[key]), flush=True)
    return [done[task, _label(policy, settings), n, seed] for task, policy, settings in asked]


def age(model: Path) -> int:
    """After how many steps of training these weights were taken."""
    with safe_open(model / "model.safetensors", framework="pt") as file:
        return int(file.metadata()["step"])


def within(slow: Row, usual: Row) -> bool:
    """Whether a task is in the range of real models."""
    steps, tpf = usual["steps_per_block"], usual["tpf"]
    return ACCURACY[0] <= slow["accuracy"] <= ACCURACY[1] and steps >= STEPS and TPF[0] <= tpf <= TPF[1]


def write_card(model: Path, rows: Sequence[Row]) -> None:
    """The model's README.md, from its rows."""
    found = {(row["task"], row["decoder"]): row for row in rows}
    regime = []
    for task in dict.fromkeys(row["task"] for row in rows):
        slow, usual = (found[task, _label(*decoder)] for decoder in (SLOW, USUAL))
        place = "not trained on" if task.endswith("-hard") else "yes" if within(slow, usual) else "no"
        regime.append(
            f"| {task} | {100 * slow['accuracy']:.1f} | {usual['steps_per_block']:.1f} | {usual['tpf']:.2f} | {place} |"
        )
    facts = {name: rows[0][name] for name in ("n", "seed", "hardware")}
    facts |= {"name": model.name, "step": age(model), "regime": "\n".join(regime), "rows": "\n".join(map(_line, rows))}
    facts["parameters"] = sum(weight.numel() for weight in tacg.load(model).model.parameters()) / 1e6  # type: ignore[attr-defined]
    (model / "README.md").write_text(CARD.format(**facts), encoding="utf-8")


def draw(model: Path, rows: Sequence[Row], path: Path) -> None:
    """The loss during training, and what a looser threshold costs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    loss = read_rows(model / "loss.jsonl")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    left.plot([row["step"] for row in loss], [row["loss"] for row in loss], color="#4c72b0", linewidth=1)
    left.set(xlabel="training step", ylabel="loss (Eq. 1)", yscale="log", title="training")
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        sweep = sorted((row for row in mine if row["decoder"].startswith("confidence")), key=lambda row: row["tpf"])
        (line,) = right.plot([row["tpf"] for row in sweep], [100 * row["accuracy"] for row in sweep], "o-", label=task)
        slow = next(row for row in mine if row["decoder"] == "schedule")
        right.plot(slow["tpf"], 100 * slow["accuracy"], "s", color=line.get_color())
    right.set(
        xlabel="tokens per forward", ylabel="accuracy, %", title="confidence 0.95 to 0.5; square: one token per step"
    )
    right.legend(frameon=False)
    for panel in (left, right):
        panel.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _label(policy: str, settings: dict[str, Any]) -> str:
    return " ".join([policy, *(str(value) for value in settings.values())])


def _line(row: Row) -> str:
    low, high = row["accuracy_ci"]
    accuracy = f"{100 * row['accuracy']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
    return f"| {row['task']} | {row['decoder']} | {accuracy} | {row['steps']:.1f} | {row['tpf']:.2f} |"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, nargs="+", help="exported checkpoints")
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--brief", action="store_true", help="two decoders, and no harder tasks")
    parser.add_argument("--picture", type=Path, help="draw the loss curve and the threshold sweep here")
    parser.add_argument("--dtype", default="float32", help="bfloat16 is faster where the CPU has instructions for it")
    asked = parser.parse_args()
    for model in asked.model:
        rows = measure(model, asked.n, asked.seed, asked.brief, asked.dtype)
        write_card(model, rows)
        if asked.picture:
            draw(model, rows, asked.picture)


if __name__ == "__main__":
    main()
