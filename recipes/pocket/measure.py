"""Measure pocket on held-out problems: a row a task and decoder, a table in the model's card, a picture.

    python recipes/pocket/measure.py --model src/tacg/models/pocket --n 500

Rows go to `quality.jsonl` beside the weights, each as soon as it is done. Started again, only what is missing is
measured; rows of other weights are dropped.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress

import tacg
from tacg.experiments.evaluate import evaluate
from tacg.records.rows import read_rows, write_rows
from tacg.tasks import get_task, task_names

if TYPE_CHECKING:
    from collections.abc import Sequence

DECODERS: list[tuple[str, dict[str, Any]]] = [
    ("schedule", {}),  # one token a step
    *(("confidence", {"threshold": threshold}) for threshold in (0.95, 0.9, 0.8, 0.7, 0.6, 0.5)),
    *((policy, {}) for policy in ("tacg", "klass", "tacg+klass")),
]
CARD = """# pocket

A masked diffusion language model with LLaDA's architecture and {parameters:.1f} million parameters, trained from
nothing on two CPU cores (`recipes/pocket`). It knows the pocket tasks (`tacg tasks`) and nothing else.

Measured on {n} test problems a task (seed {seed}, test split, {hardware}); brackets are 95 % intervals. Written by
`recipes/pocket/measure.py` from `quality.jsonl`; the loss during training is in `loss.jsonl`.

| task | decoder | accuracy % | steps | tokens per forward |
|---|---|---|---|---|
"""


def measure(model: Path, n: int, seed: int) -> list[dict[str, Any]]:
    """All rows of these weights, those already in the file included."""
    path = model / "quality.jsonl"
    weights = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()[:12]
    known = [row for row in read_rows(path) if row["weights"] == weights] if path.exists() else []
    path.unlink(missing_ok=True)
    write_rows(path, known)
    llm = tacg.load(model)
    done = {(row["task"], row["decoder"], row["n"], row["seed"]): row for row in known}
    with Progress(transient=True) as bar:
        for task in task_names():
            for policy, settings in DECODERS:
                key = (task, _label(policy, settings), n, seed)
                if key in done:
                    continue
                line = bar.add_task(" · ".join(key[:2]), total=n)
                run = evaluate(
                    llm, get_task(task), policy, n=n, seed=seed, settings=settings,
                    on_item=lambda _, line=line: bar.advance(line),
                )  # fmt: skip
                bar.remove_task(line)
                done[key] = run.row | {"model": model.name, "decoder": key[1], "weights": weights}
                write_rows(path, [done[key]])
                print(_line(done[key]), flush=True)
    return [done[task, _label(*decoder), n, seed] for task in task_names() for decoder in DECODERS]


def write_card(model: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The model's README.md, from its rows."""
    parameters = sum(weight.numel() for weight in tacg.load(model).model.parameters()) / 1e6  # type: ignore[attr-defined]
    facts = {name: rows[0][name] for name in ("n", "seed", "hardware")}
    text = CARD.format(parameters=parameters, **facts) + "\n".join(map(_line, rows)) + "\n"
    (model / "README.md").write_text(text, encoding="utf-8")


def draw(model: Path, rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The loss during training, and what a looser threshold costs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    loss = read_rows(model / "loss.jsonl")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    left.plot([row["step"] for row in loss], [row["loss"] for row in loss], color="#4c72b0", linewidth=1)
    left.set(xlabel="training step", ylabel="loss (Eq. 1)", yscale="log", title="training")
    for task in task_names():
        mine = [row for row in rows if row["task"] == task]
        sweep = [row for row in mine if row["decoder"].startswith("confidence")]
        (line,) = right.plot([row["tpf"] for row in sweep], [100 * row["accuracy"] for row in sweep], "o-", label=task)
        slow = next(row for row in mine if row["decoder"] == "schedule")
        right.plot(slow["tpf"], 100 * slow["accuracy"], "s", color=line.get_color())
    right.set(
        xlabel="tokens per forward", ylabel="accuracy, %", title="confidence 0.95 to 0.5; square: one token a step"
    )
    right.legend(frameon=False)
    for panel in (left, right):
        panel.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _label(policy: str, settings: dict[str, Any]) -> str:
    return " ".join([policy, *(str(value) for value in settings.values())])


def _line(row: dict[str, Any]) -> str:
    low, high = row["accuracy_ci"]
    accuracy = f"{100 * row['accuracy']:.1f} ({100 * low:.1f}…{100 * high:.1f})"
    return f"| {row['task']} | {row['decoder']} | {accuracy} | {row['steps']:.1f} | {row['tpf']:.2f} |"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="an exported checkpoint")
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, help="draw the loss curve and the threshold sweep here")
    asked = parser.parse_args()
    rows = measure(asked.model, asked.n, asked.seed)
    write_card(asked.model, rows)
    if asked.picture:
        draw(asked.model, rows, asked.picture)


if __name__ == "__main__":
    main()
