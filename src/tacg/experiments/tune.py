"""Tune a policy's knobs: many trials on the dev split with two goals (quality and steps), and their Pareto front.

Quality is accuracy if answers can be graded. Without labels it is agreement with decoding one token per step, which is
the most careful decode and needs only prompts. Needs the extra `tune`.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Protocol

from tacg.engine.request import Decode, resolve
from tacg.errors import TacgError, unknown
from tacg.experiments.evaluate import identity_for
from tacg.experiments.grid import Cell, Sample, Tick, run
from tacg.files import write_file
from tacg.policies import get_policy
from tacg.records.rows import Ledger, ResultRow, key_of
from tacg.records.stats import front
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table
from tacg.shapes import COUNT, Number
from tacg.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import optuna

    from tacg.llm import LLM
    from tacg.tasks import Task
    from tacg.types import Output


@dataclass(frozen=True)
class Range:
    """Values to try: a list, or a range from low to high (integers if both are; `log`: uniform in the logarithm)."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[Any, ...] = ()

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        """A value for this trial."""
        if self.choices:
            return trial.suggest_categorical(name, self.choices)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high)
        return round(trial.suggest_float(name, self.low, self.high, log=self.log), 4)


SPACE: dict[str, Range] = {
    "threshold": Range(0.5, 0.99),
    "kl_threshold": Range(1e-3, 1.0, log=True),
    "history": Range(1, 3),
    "w": Range(0.0, 1.0),
    "beta": Range(0.3, 0.98),
    "support_lambda": Range(0.01, 2.0, log=True),
    "tau_floor": Range(0.3, 0.95),
    "tau_escape": Range(0.8, 1.0),
    "m_base": Range(1, 4),
    "m_extra": Range(1, 4),
    "k_extra": Range(0, 6),
    "observe": Range(choices=("block", "sequence")),
    "fallback": Range(choices=("readiness", "base")),
    "support": Range(choices=("gain", "log_ratio", "steady")),
    "max_support": Range(0.0, 1.0),
    "k_ratio": Range(0.1, 2.0),
    "rejoin": Range(choices=(True, False)),
}
# Searched only when named: departures from the paper, and knobs that rarely matter.
ASKED = ("fallback", "support", "max_support", "k_ratio", "rejoin")


def space_of(policy: str, only: Sequence[str] = ()) -> dict[str, Range]:
    """The knobs to search: those in `SPACE` that the policy or the decode has, or only the named ones."""
    known = {**Decode().knobs(), **get_policy(policy).knobs()}
    for name in only:
        if name not in known or name not in SPACE:
            raise unknown("knob to tune", name, [each for each in SPACE if each in known])
    gated = "k_extra" in known  # `observe` matters only to gated policies
    return {
        name: values for name, values in SPACE.items()
        if name in known and (name in only if only else name not in ASKED and (gated or name != "observe"))
    }  # fmt: skip


# The shape of an agreement row.
AGREED = {
    "quality": Number(0, 1), "steps": Number(0), "policy": str, "n": COUNT, "item_quality?": [Number(0, 1)],
    "item_steps?": [COUNT], "item_forwards?": [COUNT], "item_positions?": [COUNT], "seconds?": Number(0),
}  # fmt: skip


class Judge(Protocol):
    """Evaluates settings and returns a row with `quality` and `steps`."""

    def __call__(self, settings: Mapping[str, Any], name: str) -> ResultRow:
        """Decode with these settings; `name` is for the progress bar."""


def by_labels(llm: LLM, task: Task, policy: str, sample: Sample, ledger: Ledger, tick: Tick | None = None) -> Judge:
    """A judge whose quality is accuracy on the task."""

    def judge(settings: Mapping[str, Any], name: str) -> ResultRow:
        (row,) = run(llm, [Cell(task, policy, settings, name)], sample, ledger, tick)
        return row | {"quality": row["accuracy"]}

    return judge


def by_agreement(
    llm: LLM, prompts: Sequence[Any], policy: str, decode: Mapping[str, Any], ledger: Ledger, tick: Tick | None = None,
    batch_size: int = 32,
) -> Judge:  # fmt: skip
    """A judge whose quality is agreement with decoding one token per step; no labels are used.

    prompts  anything `LLM.generate` accepts; for a canvas, the filled holes are compared
    """
    lengths: dict[str, Any] = {"early_stop": False, **decode}
    weights, asked = llm.identity["weights"], list(prompts)
    alike = resolve(policy, lengths)[1]
    shape: dict[str, Any] = {
        "gen_length": alike.gen_length,
        "block_length": alike.block_length,
        "suppress": alike.suppress,
    }

    def judge(settings: Mapping[str, Any], name: str) -> ResultRow:
        made = resolve(policy, {**lengths, **settings})
        key = key_of(agreed=asked, decode=repr(made), model=identity_for(llm, made[0]), version=__version__)
        row = ledger.get(key, AGREED)
        if row is None:
            shares, counts = [0.0] * len(asked), [(0, 0, 0)] * len(asked)
            wanted = careful_answers(llm, asked, shape, ledger, batch_size)
            began = time.perf_counter()

            def keep(number: int, output: Output) -> None:
                shares[number] = agreement(written(llm, output), wanted[number])
                counts[number] = output.steps, output.forwards, output.positions
                if tick is not None:
                    tick(name, shares[number] == 1)

            llm.generate(asked, policy, batch_size=batch_size, on_output=keep, **{**lengths, **settings})
            steps, forwards, positions = (list(each) for each in zip(*counts, strict=True))
            row = {"policy": made[0].label, "model": llm.model.spec.name, "n": len(asked), "weights": weights}
            row |= {"quality": sum(shares) / len(shares), "steps": sum(steps) / len(steps), **surroundings()}
            row |= {"item_quality": shares, "item_steps": steps, "item_forwards": forwards, "item_positions": positions}
            row |= {"seconds": time.perf_counter() - began}
            row = ledger.add(key, row)
        elif tick is not None:
            for _ in asked:
                tick(name, row["quality"] == 1, known=True)
        return row

    return judge


def careful_answers(
    llm: LLM, prompts: Sequence[Any], shape: Mapping[str, Any], ledger: Ledger, batch_size: int = 32
) -> list[str]:
    """The answers of one token per step; kept in the ledger, because this is by far the slowest decode."""
    model = identity_for(llm, get_policy("schedule"))
    key = key_of(careful=list(prompts), shape=dict(shape), model=model, version=__version__)
    row = ledger.get(key, {"texts": [str]})
    if row is None:
        outputs = llm.generate(list(prompts), "schedule", batch_size=batch_size, **shape)
        row = ledger.add(key, {"texts": [written(llm, output) for output in outputs]})
    texts: list[str] = row["texts"]
    return texts


def written(llm: LLM, output: Output) -> str:
    """The text by which answers are compared: the whole answer, or for a canvas only the tokens in its holes."""
    if not output.holes:
        return llm.text(output.tokens)
    places = sorted({commit.position for commit in output.commits})
    return " ".join(llm.tokenizer.decode([output.tokens[place]]) for place in places)


def agreement(ours: str, theirs: str) -> float:
    """Half for the share of common words, half for identical text.

    Common words are not enough: a grid with one wrong digit or a program with one wrong sign has almost all of them.
    """
    return (likeness(ours, theirs) + (ours == theirs)) / 2


def likeness(ours: str, theirs: str) -> float:
    """Similarity from 0 (nothing in common) to 1 (the same text): the share of words in common runs."""
    return SequenceMatcher(None, ours.split(), theirs.split(), autojunk=False).ratio()


def tune(
    judge: Judge, space: Mapping[str, Range], trials: int, seed: int = 0, first: Sequence[Mapping[str, Any]] = ()
) -> list[ResultRow]:
    """Try `trials` settings, starting with `first`; returns all rows with their settings. Seeded."""
    try:
        import optuna
    except ImportError:
        raise TacgError("Tuning needs Optuna: pip install 'tacg[tune]'.") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(8, trials // 4))
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    for start in first:
        study.enqueue_trial(dict(start), skip_if_exists=True)
    rows = []
    for number in range(trials):
        trial = study.ask()
        settings = {name: values.suggest(trial, name) for name, values in space.items()}
        row = judge(settings, f"trial {number + 1}")
        study.tell(trial, [row["quality"], row["steps"]])
        rows.append(row | {"settings": settings})
    return rows


def choose(rows: Sequence[ResultRow], give: float = 0.01) -> ResultRow:
    """The fastest row whose quality is at most `give` below the best."""
    best = max(row["quality"] for row in rows)
    return min((row for row in rows if row["quality"] >= best - give), key=lambda row: (row["steps"], -row["quality"]))


def table(rows: Sequence[ResultRow], chosen: ResultRow, title: str) -> Table:
    """The Pareto front, with the chosen point marked."""
    lines = [
        (
            "*" if row is chosen else "", f"{100 * row['quality']:.1f}", f"{row['steps']:.1f}",
            " ".join(f"{name}={value}" for name, value in row["settings"].items()),
        )
        for row in front(rows)
    ]  # fmt: skip
    return Table(title, ("", "quality %", "steps", "knobs"), tuple(lines))


def write_preset(path: Path, policy: str, settings: Mapping[str, Any], about: str) -> Path:
    """Write a preset file with all settings that are not defaults; every command accepts it as `name:path.toml`."""
    made, decode = resolve(policy, dict(settings))
    lines = [f"# {about}", f'policy = "{policy.partition(":")[0]}"', ""]
    for part, knobs, values in (("knobs", made.knobs(), made.values()), ("decode", decode.knobs(), decode.values())):
        changed = {name: value for name, value in values.items() if value != knobs[name].default and value is not None}
        lines += [f"[{part}]", *(f"{name} = {json.dumps(value)}" for name, value in changed.items()), ""]
    return write_file(path, "\n".join(lines))


def defaults(policy: str, space: Mapping[str, Range]) -> dict[str, Any]:
    """The policy's default values of the searched knobs: a good first trial."""
    made, decode = resolve(policy, {})
    values = {**decode.values(), **made.values()}
    return {name: values[name] for name in space if values[name] is not None}
