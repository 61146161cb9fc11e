"""Which decoder, with which knobs, for this model and these problems? Many candidates on few problems, few on many.

The goal is the cheapest candidate among those whose quality is at most `give` below the best. Quality is accuracy, or
without labels agreement with one token per step. The cost is the number of forwards: a decoder that looks ahead needs
fewer steps, but several forwards for each. Successive halving: after each round, the candidates that
most likely meet the goal go on to more problems, and every round gets the same time. All candidates get the same
problems, and the winner is then measured on others.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from tacg.engine.request import resolve
from tacg.errors import TacgError
from tacg.experiments.arena import frontier_of, main_knob, named
from tacg.experiments.grid import Cell, Sample, run, takes
from tacg.experiments.tune import by_agreement
from tacg.policies import get_policy
from tacg.policies.base import DEFAULT_BASE
from tacg.records.stats import paired_bootstrap
from tacg.records.tables import Table, estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from tacg.experiments.grid import Tick
    from tacg.llm import LLM
    from tacg.records.rows import Ledger, ResultRow
    from tacg.tasks import Task

Found = TypeVar("Found")

# Tried by default: there is no time to compare forty decoders, each with six values of its main knob.
# Picked by hand from the arena's rows on pocket; `schedule` shows how good answers can be.
# `apd` is not among them, because it needs a second model, whose forwards are not counted.
SHORT_LIST = ("confidence", "tacg", "eb", "d3llm", "entropy", "frechet", "wino", "credit", "auto", "schedule")
COSTS = ("forwards", "steps", "positions")
FIRST, GROWTH = 16, 2  # problems of the first round; each round keeps one candidate in this many
NEAR = 0.1  # extra cost that makes no difference, as a fraction
FAR = 0.25  # if a value is this far below the best, faster values of the same decoder are not tried
FINALISTS = 3
OPENING = 0.5  # share of the budget for the first round, which tries everything
UNSEEN = 0.12  # share of the budget for problems that were not used for choosing
MOST = 1000  # problems for choosing, and for the final figures


@dataclass
class Candidate:
    """A decoder with its knobs, and its results so far: quality and cost, problem by problem.

    place  index of its value on the decoder's frontier, from fast to careful
    """

    spec: str
    settings: dict[str, Any]
    name: str
    quality: list[float] = field(default_factory=list)
    cost: list[int] = field(default_factory=list)
    seconds: float = 0.0
    place: int = 0

    @property
    def pace(self) -> float:
        """Seconds per problem."""
        return self.seconds / max(len(self.cost), 1)

    @property
    def means(self) -> tuple[float, float]:
        """Quality and cost."""
        return float(np.mean(self.quality)), float(np.mean(self.cost))


class Problems(Protocol):
    """The problems. `most`: how many there are for choosing. `unseen`: problems that were not used for choosing."""

    @property
    def most(self) -> int:
        """How many problems there are for choosing."""
        ...

    def attempt(self, candidate: Candidate, n: int, skip: int) -> ResultRow:
        """Decode `n` problems after the first `skip`: a row with item_quality, item costs and seconds."""
        ...

    def unseen(self, candidate: Candidate, n: int, seen: int) -> ResultRow:
        """The same on at most `n` problems that are not among the first `seen`."""
        ...


def split_to_choose_on(task: Task) -> str:
    """The dev split; for a benchmark without one, the test split."""
    try:
        next(task.problems("dev", 1))
    except TacgError:
        return "test"
    return "dev"


@dataclass(frozen=True)
class Graded:
    """Problems of a task: the dev split for choosing, the test split for the final figures."""

    llm: LLM
    task: Task
    ledger: Ledger
    seed: int = 0
    batch_size: int = 32
    tick: Tick | None = None

    @functools.cached_property
    def size(self) -> int | None:
        """Problems of a benchmark that has only a test split, which is divided."""
        if split_to_choose_on(self.task) == "dev":
            return None
        return sum(1 for _ in self.task.problems("test"))

    @property
    def most(self) -> int:
        """Two thirds of the problems."""
        return MOST if self.size is None else 2 * self.size // 3

    def attempt(self, candidate: Candidate, n: int, skip: int) -> ResultRow:
        """Accuracy is the quality."""
        return self._row(candidate, Sample(n, self.seed, split_to_choose_on(self.task), self.batch_size, skip))

    def unseen(self, candidate: Candidate, n: int, seen: int) -> ResultRow:
        """Problems of the test split, or the remaining third."""
        if self.size is None:
            return self._row(candidate, Sample(n, self.seed, "test", self.batch_size))
        return self._row(candidate, Sample(min(n, self.size - seen - 1), self.seed, "test", self.batch_size, seen))

    def _row(self, candidate: Candidate, sample: Sample) -> ResultRow:
        cell = Cell(self.task, candidate.spec, candidate.settings, candidate.name)
        (row,) = run(self.llm, [cell], sample, self.ledger, self.tick)
        return row | {"item_quality": [float(mark == "1") for mark in row["correct"]]}


@dataclass(frozen=True)
class Agreeing:
    """Prompts without labels: quality is agreement with one token per step. The last third is kept for the end."""

    llm: LLM
    prompts: Sequence[Any]
    lengths: dict[str, Any]
    ledger: Ledger
    batch_size: int = 32
    tick: Tick | None = None

    @property
    def most(self) -> int:
        """Two thirds of the prompts, at least one."""
        return max(2 * len(self.prompts) // 3, 1)

    def attempt(self, candidate: Candidate, n: int, skip: int) -> ResultRow:
        """Agreement with the careful answers."""
        prompts, decode = self.prompts[skip : skip + n], self.lengths | candidate.settings
        judge = by_agreement(self.llm, prompts, candidate.spec, decode, self.ledger, self.tick, self.batch_size)
        return judge({}, candidate.name)

    def unseen(self, candidate: Candidate, n: int, seen: int) -> ResultRow:
        """Prompts that were not used for choosing; a single prompt is used for both."""
        return self.attempt(candidate, n, self.most if len(self.prompts) > self.most else 0)


def candidates_of(specs: Sequence[str], lengths: Mapping[str, Any], fixed: Mapping[str, Any]) -> list[Candidate]:
    """Every decoder at its defaults, then all at the next value of their main knob, and so on.

    All values are candidates: where one wrong token spoils an answer, the best ones are at the careful end.

    lengths  of the problems' answers; a value that these do not allow is left out
    fixed    settings of all decoders that have them; a main knob that is fixed is not varied
    """
    ladders = []
    for spec in specs:
        knob, grid = main_knob(get_policy(spec))
        mine = takes(spec, fixed)
        moves = knob not in {"", *mine}
        order = frontier_of(get_policy(spec))[1]
        ladders.append([
            Candidate(
                spec, mine | ({knob: value} if moves else {}), named(spec, knob, value) if moves else spec,
                place=order.index(value),
            )
            for value in (grid if moves else grid[:1])
        ])  # fmt: skip
    found = (each for level in itertools.zip_longest(*ladders) for each in level if each is not None)
    return [each for each in found if _allowed(each.spec, {**lengths, **each.settings})]


def _allowed(spec: str, settings: Mapping[str, Any]) -> bool:
    try:
        resolve(spec, dict(settings))
    except TacgError:
        return False
    return True


@dataclass
class Race:
    """Successive halving under a budget of seconds. Candidates that were not tried are listed as such.

    finalists  those that were run on all `seen` problems
    untried    those that the budget had no time for
    hopeless   those that were not tried because a more careful value of the same decoder was far below the best
    refused    why decoders cannot run on this model, by name
    cost       what is counted, one of `COSTS`
    jobs       candidates that are tried at the same time; `problems` must allow that
    """

    problems: Problems
    give: float
    budget: float
    clock: Callable[[], float] = time.monotonic
    jobs: int = 1
    cost: str = COSTS[0]
    finalists: list[Candidate] = field(default_factory=list)
    untried: list[Candidate] = field(default_factory=list)
    hopeless: list[Candidate] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    seen: int = 0

    def run(self, candidates: Sequence[Candidate]) -> Candidate:
        """The candidate to use."""
        end = self.clock() + self.budget * (1 - UNSEEN)
        self._open(candidates, self.clock() + self.budget * OPENING)
        while len(self.finalists) > 1 and (size := self._next(end)):
            went_on = self.each(functools.partial(self._try, n=size), self.finalists)
            self.finalists = list(itertools.compress(self.finalists, went_on))
            self.seen += size
        if not self.finalists:
            raise TacgError(f"No decoder can be tried: {next(iter(self.refused.values()), 'none was named')}")
        return self.ranked()[0]

    def _open(self, candidates: Sequence[Candidate], until: float) -> None:
        """Try everything on the same few problems, in order, as long as there is time."""
        size = min(FIRST, self.problems.most)

        def opening(candidate: Candidate) -> None:
            if self._is_hopeless(candidate):
                self.hopeless.append(candidate)
            elif self.finalists and self.clock() >= until:
                self.untried.append(candidate)
            elif self._try(candidate, size):
                self.finalists.append(candidate)

        self.each(opening, candidates)
        self.seen = size

    def each(self, act: Callable[[Candidate], Found], candidates: Sequence[Candidate]) -> list[Found]:
        """What `act` finds for each candidate, `jobs` of them at the same time."""
        if self.jobs == 1:
            return [act(candidate) for candidate in candidates]
        with ThreadPoolExecutor(self.jobs) as pool:  # threads only wait: other processes decode
            return list(pool.map(act, candidates))

    def _is_hopeless(self, candidate: Candidate) -> bool:
        """Whether a more careful value of the same decoder, which should be no worse, was far below the best."""
        tried = list(self.finalists)  # others may be added meanwhile
        best = max((each.means[0] for each in tried), default=0.0)
        careful = (each for each in tried if each.spec == candidate.spec and each.place > candidate.place)
        return any(each.means[0] < best - FAR for each in careful)

    def _try(self, candidate: Candidate, n: int) -> bool:
        if candidate.spec in self.refused:
            return False
        try:
            row = self.problems.attempt(candidate, n, self.seen)
        except TacgError as error:
            self.refused[candidate.spec] = str(error)
            return False
        candidate.quality += row["item_quality"]
        candidate.cost += row[f"item_{self.cost}"]
        candidate.seconds += row["seconds"]
        return True

    def ranked(self) -> list[Candidate]:
        """The remaining candidates, the most likely first."""
        chance = chances(self.finalists, self.give)
        order = sorted(range(len(chance)), key=lambda place: (-chance[place], self.finalists[place].means[1]))
        return [self.finalists[place] for place in order]

    def _next(self, end: float) -> int:
        """Keep the most likely; returns how many more problems fit into this round's share of the time left.

        If half of them could see only a few, fewer are kept. 0: there is no time even for the last ones.
        """
        ranked, rest = self.ranked(), self.problems.most - self.seen
        kept = len(ranked)
        while True:
            kept = min(len(ranked), max(-(-kept // GROWTH), FINALISTS))
            rounds = 1 + math.ceil(max(0.0, math.log(kept / FINALISTS, GROWTH)))
            pace = max(sum(each.pace for each in ranked[:kept]), 1e-9)
            size = min(int(self.jobs * (end - self.clock()) / rounds / pace), rest)
            if size >= max(1, min(FIRST // GROWTH, rest)):
                self.finalists = ranked[:kept]
                return size
            if kept <= FINALISTS:
                return 0


def chances(candidates: Sequence[Candidate], give: float, rounds: int = 2000) -> NDArray[np.float64]:
    """How likely each candidate meets the goal: at most `give` worse, at a cost at most a fraction `NEAR` higher.

    All were run on the same problems. A Bayesian bootstrap: problems get random weights, the same for all candidates,
    so only problems on which they differ count. (Independent noise would make the best of many look too good.) Being
    close is enough, because among neighbours on a frontier none is ever likely to be the single best.
    """
    quality = np.array([each.quality for each in candidates])
    cost = np.array([each.cost for each in candidates], dtype=np.float64)
    rng = np.random.default_rng(0)
    weights = rng.exponential(size=(rounds, quality.shape[1]))
    weights /= weights.sum(axis=1, keepdims=True)
    drawn, paid = weights @ quality.T, weights @ cost.T
    sought = np.where(drawn >= drawn.max(axis=1, keepdims=True) - give, paid, np.inf).argmin(axis=1, keepdims=True)
    as_good = drawn >= np.take_along_axis(drawn, sought, axis=1) - give
    as_cheap = paid <= np.take_along_axis(paid, sought, axis=1) * (1 + NEAR)
    found: NDArray[np.float64] = (as_good & as_cheap).mean(axis=0)
    return found


def shown(race: Race, chosen: Candidate, fixed: Mapping[str, Any]) -> list[ResultRow]:
    """Rows of the winner, and of `confidence` at its defaults, on problems that were not used for choosing.

    As many problems as the last share of the budget allows.
    """
    at_once = min(race.jobs, 2) / 2
    n = max(FIRST, min(MOST, int(race.budget * UNSEEN * at_once / max(chosen.pace, 1e-9))))
    usual = Candidate(DEFAULT_BASE, takes(DEFAULT_BASE, fixed), f"{DEFAULT_BASE}, defaults")
    own = get_policy(DEFAULT_BASE).values() | usual.settings
    same = chosen.spec == DEFAULT_BASE and own | chosen.settings == own  # then it is decoded once
    rows = race.each(lambda each: race.problems.unseen(each, n, race.seen), (chosen,) if same else (chosen, usual))
    rows = [rows[0] | {"name": chosen.name}, rows[-1] | {"name": usual.name}]
    return [
        row | {"quality": float(np.mean(row["item_quality"])), race.cost: float(np.mean(row[f"item_{race.cost}"]))}
        for row in rows
    ]


def unseen_table(rows: Sequence[ResultRow], cost: str) -> Table:
    """The winner next to `confidence`, paired by problem."""
    lines = []
    for row in rows:
        low, high = paired_bootstrap(row["item_quality"], rows[-1]["item_quality"])
        difference = 100 * (row["quality"] - rows[-1]["quality"])
        change = "" if row is rows[-1] else estimate(difference, 100 * low, 100 * high)
        lines.append((row["name"], f"{100 * row['quality']:.1f}", change, f"{row[cost]:.1f}"))
    title = f"on {len(rows[0]['item_quality'])} problems that were not used for choosing"
    return Table(title, ("decoder", "quality %", "Δ quality", cost), tuple(lines))


def evidence(race: Race, title: str) -> Table:
    """The finalists on the problems that were used for choosing, the winner first."""
    ranked = race.ranked()
    lines = []
    for each, share in zip(ranked, chances(ranked, race.give), strict=True):
        quality, cost = each.means
        lines.append((each.name, f"{100 * quality:.1f}", f"{cost:.1f}", f"{100 * share:.0f}", f"{each.pace:.2f}"))
    return Table(title, ("decoder", "quality %", race.cost, "likely as good %", "s per problem"), tuple(lines))
