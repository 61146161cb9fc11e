"""The paper's Fig. 1: does a signal separate right proposals from wrong ones *beyond* what confidence does?

Every proposal for a mask in every step is a sample. It matches if it is the token of the reference answer at that
position, or the token of the finished decode (then proposals that are committed in the same step are left out, because
they match by definition). Signals of change (support, log ratio, KL) have no meaning at a position's first observation,
which is left out for them. Proposals of one problem are not independent, so intervals resample whole problems.

`features` describes a model on such prompts by a few numbers that need no labels; `tacg law` explains gains by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tacg.engine.events import Finished, Started, Step
from tacg.engine.request import resolve
from tacg.errors import TacgError
from tacg.experiments.evaluate import identity_for, settings_of
from tacg.experiments.grid import takes
from tacg.policies.base import DEFAULT_BASE
from tacg.policies.probe import Probe
from tacg.records.bins import CONFIDENCE, SIGNALS, bin_names
from tacg.records.rows import Ledger, ResultRow, key_of
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table, estimate
from tacg.shapes import COUNT, Number
from tacg.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tacg.experiments.grid import Sample, Tick
    from tacg.llm import LLM
    from tacg.tasks import Task

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

OF_CHANGE = {"support", "log_ratio", "kl"}
TARGETS = ("reference", "final")
FIELDS = ("problem", "share", "first", "committed", "confidence", *SIGNALS, *TARGETS)
# What is measured without labels, and what it means.
FEATURES = {
    "steps": f"steps per block of `{DEFAULT_BASE}`",
    "flips": "share of proposals that differ from those of the step before",
    "early": "overconfidence while more than two thirds of a block are masked",
    "fall": "how far that falls once less than a third is masked",
    "streak": "AUC of the streak beyond confidence",
    "support": "AUC of support beyond confidence",
}
SURE = 0.5  # overconfidence is measured on proposals that some threshold might commit
ROUNDS = 200
LEVELS = 200  # levels of confidence within which signals are compared


def collect(
    llm: LLM, task: Task, policy: str, sample: Sample, tick: Tick | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Array:  # fmt: skip
    """Every proposal for a mask: float64 [proposals, FIELDS]. End-of-text padding is left out: it would dominate.

    share  of the masks that the block began with, how many are left
    """
    problems = list(task.problems(sample.split, sample.n, sample.seed))
    settings = settings_of(task, policy, settings or {}, llm)
    rule, decode = resolve(policy, settings)
    probe, settings = Probe(base=rule), {**decode.values(), "suppress": decode.suppress}
    spec, length = llm.model.spec, decode.gen_length
    ends, mask_id = spec.eos_ids, spec.mask_id
    expected = [llm.tokenizer.encode(problem.answer) for problem in problems]
    seen: dict[int, list[tuple[float, ...]]] = {}
    canvas: dict[int, tuple[int, ...]] = {}  # canvas of each row, before the step
    begun: dict[tuple[int, int], int] = {}  # masks of a row's block at first
    found: list[tuple[float, ...]] = []
    prompts = [problem.asked for problem in problems]
    for event in llm.stream(prompts, probe, batch_size=sample.batch_size, **settings):
        if isinstance(event, Started):
            canvas[event.row] = event.canvas
        elif isinstance(event, Step):
            mine = seen.setdefault(event.row, [])
            known, written = {place for place, *_ in mine}, {commit.position for commit in event.committed}
            # Proposals at committed positions are not samples.
            masks = [each for each in event.proposals if canvas[event.row][each.position] == mask_id]
            share = len(masks) / begun.setdefault((event.row, event.block), max(len(masks), 1))
            mine.extend(
                (
                    each.position, each.token, share, each.position not in known, each.position in written,
                    each.confidence, *(each.signals[name] for name in SIGNALS),
                )
                for each in masks
            )  # fmt: skip
            canvas[event.row] = event.canvas
        elif isinstance(event, Finished):
            if event.output.error:
                raise TacgError(f"{task.name}, problem {problems[event.row].id}: {event.output.error}")
            final, wanted = event.output.tokens, expected[event.row] + [*ends[:1]] * length
            labelled = problems[event.row].answer != ""
            if problems[event.row].infill:  # the canvas is the answer, from its first hole on
                wanted = [*spec.before, *wanted, *spec.after][event.output.prompt_tokens :]
            stop = next((place for place, token in enumerate(final) if token in ends), len(final))
            for place, token, *values in seen.pop(event.row):
                if place < stop:
                    match = token == wanted[int(place)] if labelled else np.nan
                    found.append((event.row, *values, match, token == final[int(place)]))
            if tick is not None:
                tick(task.name, task.grade(problems[event.row], event.output.text).correct)
    return np.array(found, dtype=np.float64).reshape(-1, len(FIELDS))


def steps_per_block(llm: LLM, task: Task, sample: Sample, settings: Mapping[str, Any]) -> float:
    """Steps per block of the default base policy on the same problems: with two steps there is hardly a trajectory."""
    asked: list[Any] = [problem.asked for problem in task.problems(sample.split, sample.n, sample.seed)]
    mine = settings_of(task, DEFAULT_BASE, takes(DEFAULT_BASE, settings), llm)
    length = llm.model.spec.block_length(resolve(DEFAULT_BASE, mine)[1].block_length)
    outputs = llm.generate(asked, DEFAULT_BASE, batch_size=sample.batch_size, **mine)
    return float(np.mean([each.steps / len({one.position // length for one in each.commits}) for each in outputs]))


def features(data: Array, auc: Mapping[str, Any], steps: float, target: str) -> dict[str, float | None]:
    """What a model does on such prompts, in numbers (`FEATURES`); None where nothing could be measured."""
    share, sure = column(data, "share"), column(data, "confidence")
    again, counted = column(data, "first") == 0, _usable(data, target, "confidence") & (sure >= SURE)
    over = sure - column(data, target)
    early, late = (_mean(over[counted & part]) for part in (share > 2 / 3, share < 1 / 3))
    fall = None if early is None or late is None else early - late
    flips = _mean(column(data, "streak")[again] == 1)
    found: dict[str, float | None] = {"steps": steps, "flips": flips, "early": early, "fall": fall}
    for name in ("streak", "support"):
        found[name] = auc[target][name][0] if auc[target][name] else None
    return found


def _mean(values: Array | Mask) -> float | None:
    return float(values.mean()) if len(values) else None


SHAPE = {
    "features": dict.fromkeys(TARGETS, dict),
    "task": str, "model": str, "policy": str, "n": COUNT, "proposals": COUNT, "auc": dict.fromkeys(TARGETS, dict),
    "bins": [{"target": str, "signal": str, "confidence": COUNT, "count": COUNT, "match": Number(0, 1),
              "match_ci": list, "mean_confidence": Number(0, 1), "bin?": COUNT, "streak?": COUNT}],
}  # fmt: skip


def diagnose(
    llm: LLM, tasks: Sequence[Task], policy: str, sample: Sample, ledger: Ledger | None = None,
    tick: Tick | None = None, settings: Mapping[str, Any] | None = None,
) -> list[ResultRow]:  # fmt: skip
    """One row per task: match rates by confidence alone, by each signal within it, by support within both; AUCs; and
    the features by target."""
    settings = settings or {}
    ledger = ledger or Ledger()
    weights, rows = llm.identity["weights"], []
    for task in tasks:
        made = resolve(policy, settings_of(task, policy, settings, llm))
        facts: ResultRow = {
            "task": task.name, "model": llm.model.spec.name, "policy": made[0].label, "weights": weights,
            "n": sample.n, "seed": sample.seed, "split": sample.split,
        }  # fmt: skip
        edges = {"confidence": CONFIDENCE, **SIGNALS}
        key = key_of(
            diagnose=repr(task),
            rule=repr(made),
            identity=identity_for(llm, made[0]),
            edges=edges,
            levels=LEVELS,
            features=FEATURES,
            asked=[problem.prompt for problem in task.problems(sample.split, sample.n, sample.seed)],
            version=__version__,
            **facts,
        )
        row = ledger.get(key, SHAPE)
        if row is None:
            data = collect(llm, task, policy, sample, tick, settings)
            auc, steps = aucs(data), steps_per_block(llm, task, sample, settings)
            numbers = {target: features(data, auc, steps, target) for target in TARGETS}
            facts |= {"proposals": len(data), "bins": list(bins(data)), "auc": auc, "features": numbers}
            row = ledger.add(key, facts | surroundings())
        rows.append(row)
    return rows


def column(data: Array, name: str) -> Array:
    """One field of all proposals."""
    return data[:, FIELDS.index(name)]


def _usable(data: Array, target: str, signal: str) -> Mask:
    """The proposals on which a signal and a target are defined."""
    usable = ~np.isnan(column(data, target))  # there are no reference answers for the user's own prompts
    if target == "final":
        usable &= column(data, "committed") == 0
    if signal in OF_CHANGE:
        usable &= column(data, "first") == 0
    return usable


def bins(data: Array) -> Iterator[ResultRow]:
    """Match rates with intervals, for every target, signal and bin that holds a proposal."""
    level = np.digitize(column(data, "confidence"), CONFIDENCE)
    place = {name: np.digitize(column(data, name), edges, right=True) for name, edges in SIGNALS.items()}
    for target in TARGETS:
        for number in range(len(CONFIDENCE) + 1):
            inside = (level == number) & _usable(data, target, "confidence")
            facts: ResultRow = {"target": target, "confidence": number}
            yield from _rate(data, inside, facts | {"signal": "confidence"})
            for name, edges in SIGNALS.items():
                usable = inside & _usable(data, target, name)
                for step in range(len(edges) + 1):
                    yield from _rate(data, usable & (place[name] == step), facts | {"signal": name, "bin": step})
            usable = inside & _usable(data, target, "support")
            for streak in range(len(SIGNALS["streak"]) + 1):
                for step in range(len(SIGNALS["support"]) + 1):
                    chosen = usable & (place["streak"] == streak) & (place["support"] == step)
                    more = {"signal": "support given streak", "bin": step, "streak": streak}
                    yield from _rate(data, chosen, facts | more)


def _rate(data: Array, chosen: Mask, facts: ResultRow) -> Iterator[ResultRow]:
    """The match rate of the chosen proposals; resamples without any of them are skipped."""
    count = int(chosen.sum())
    if not count:
        return
    size = int(column(data, "problem").max()) + 1
    problem = column(data, "problem")[chosen].astype(int)
    totals = np.bincount(problem, minlength=size)
    hits = np.bincount(problem, column(data, facts["target"])[chosen], minlength=size)
    drawn = _draws(size)
    with np.errstate(invalid="ignore"):
        rates = (drawn @ hits) / (drawn @ totals)
    low, high = np.nanquantile(rates, [0.025, 0.975])
    mean = float(column(data, "confidence")[chosen].mean())
    yield facts | {
        "count": count, "match": float(hits.sum() / count), "match_ci": [float(low), float(high)],
        "mean_confidence": mean,
    }  # fmt: skip


def _draws(size: int) -> Array:
    """How often each of `size` problems is drawn, in `ROUNDS` resamples [ROUNDS, size]; always the same ones."""
    return np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), ROUNDS).astype(np.float64)


def aucs(data: Array) -> dict[str, dict[str, list[float] | None]]:
    """How well a signal ranks right above wrong among proposals of similar confidence: 0.5 is chance.

    {target: {signal: [value, low, high]}}, None if no level has both right and wrong ones. Levels of confidence hold
    equally many proposals. Most are near 0 or 1, where levels of equal width would still contain a wide range of
    confidence, and every signal that correlates with confidence would look informative.
    """
    problem = column(data, "problem").astype(int)
    drawn = _draws(int(problem.max()) + 1)[: ROUNDS // 4] if len(data) else np.ones((0, 1))
    made: dict[str, dict[str, list[float] | None]] = {target: {} for target in TARGETS}
    for target in TARGETS:
        for name in ("confidence", *SIGNALS):
            keep = _usable(data, target, name)
            hit, values = column(data, target)[keep] > 0, column(data, name)[keep]
            level = np.argsort(np.argsort(column(data, "confidence")[keep])) * LEVELS // max(1, int(keep.sum()))
            weights = np.vstack([np.ones(len(drawn[0])), drawn])[:, problem[keep]]
            scores = _auc(values, hit, level, weights)
            made[target][name] = None
            if len(data) and not np.isnan(scores[0]):
                low, high = np.nanquantile(scores, [0.025, 0.975])
                made[target][name] = [float(scores[0]), float(low), float(high)]
    return made


def _auc(values: Array, hit: Mask, level: Any, weights: Array) -> Array:
    """Weighted AUC within levels, for each row of weights [R, n]: [R]. Ties count half."""
    won, pairs = np.zeros(len(weights)), np.zeros(len(weights))
    for number in np.unique(level):
        right, wrong = np.flatnonzero((level == number) & hit), np.flatnonzero((level == number) & ~hit)
        wrong = wrong[np.argsort(values[wrong])]
        below = np.pad(np.cumsum(weights[:, wrong], axis=1), ((0, 0), (1, 0)))
        left, until = (np.searchsorted(values[wrong], values[right], side) for side in ("left", "right"))
        won += (weights[:, right] * (below[:, left] + below[:, until]) / 2).sum(axis=1)
        pairs += weights[:, right].sum(axis=1) * below[:, -1]
    return np.where(pairs > 0, won / np.maximum(pairs, 1e-300), np.nan)


def tables(
    rows: Sequence[ResultRow], target: str = "final", signals: Sequence[str] = ("streak", "support")
) -> list[Table]:
    """For each task: the AUC of every signal within confidence, and match rates by signal and confidence."""
    made = []
    for row in rows:
        made.append(Table(
            f"{row['task']}: how well a signal ranks proposals of similar confidence (AUC, 0.5 is chance)",
            ("match with", *row["auc"]["final"]),
            tuple((name, *(_interval(score) for score in row["auc"][name].values())) for name in TARGETS),
        ))  # fmt: skip
        for signal in signals:
            lines = []
            for level, name in enumerate(bin_names("confidence")):
                mine = {
                    each["bin"]: each for each in row["bins"]
                    if (each["target"], each["signal"], each["confidence"]) == (target, signal, level)
                }  # fmt: skip
                lines.append((name, *(_percent(mine.get(number)) for number in range(len(bin_names(signal))))))
            columns = (f"confidence \\ {signal}", *bin_names(signal))
            made.append(Table(f"{row['task']}: match with the {target} token, %", columns, tuple(lines)))
        made.append(_jointly(row, target))
    return made


def feature_table(rows: Sequence[ResultRow]) -> Table:
    """What was measured without labels, one line per feature."""
    lines = []
    for name, meaning in FEATURES.items():
        values = [row["features"]["final"][name] for row in rows]
        lines.append((meaning, *("" if value is None else f"{value:.3f}" for value in values)))
    return Table("What the law looks at", ("without labels", *(row["task"] for row in rows)), tuple(lines))


def _jointly(row: ResultRow, target: str) -> Table:
    """Match rates by support among proposals of similar confidence and streak."""
    cells = {
        (each["confidence"], each["streak"], each["bin"]): each for each in row["bins"]
        if (each["target"], each["signal"]) == (target, "support given streak")
    }  # fmt: skip
    supports = range(len(bin_names("support")))
    lines = [
        (f"{level}, {streak}", *(_percent(cells.get((number, place, step))) for step in supports))
        for number, level in enumerate(bin_names("confidence"))
        for place, streak in enumerate(bin_names("streak"))
        if any((number, place, step) in cells for step in supports)
    ]
    columns = ("confidence, streak \\ support", *bin_names("support"))
    return Table(f"{row['task']}: match with the {target} token by all three, %", columns, tuple(lines))


def _interval(score: Sequence[float] | None) -> str:
    return "" if score is None else estimate(score[0], score[1], score[2], ".2f")


def _percent(cell: ResultRow | None) -> str:
    if cell is None:
        return ""
    low, high = cell["match_ci"]
    return f"{estimate(100 * cell['match'], 100 * low, 100 * high, '.0f')} n={cell['count']}"
