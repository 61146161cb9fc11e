"""The recommendation finds good settings within its budget, on problems that it does not report on."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

import tacg
from tacg.errors import TacgError
from tacg.experiments import grid
from tacg.experiments.arena import decoders
from tacg.experiments.recommend import (
    COSTS,
    FINALISTS,
    FIRST,
    SHORT_LIST,
    Agreeing,
    Candidate,
    Graded,
    Race,
    candidates_of,
    chances,
    evidence,
    shown,
    unseen_table,
)
from tacg.records.rows import Ledger
from tacg.tasks import Problem, get_task
from tests.cli.test_cli import TACG


@dataclass
class World:
    """Candidates are right with a probability and take steps, both known; time passes by steps."""

    known: dict[str, tuple[float, int]]
    most: int = 400
    now: float = 0.0
    decoded: int = 0
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    def attempt(self, candidate: Candidate, n: int, skip: int) -> dict[str, Any]:
        if candidate.spec == "refuses":
            raise TacgError("not on this model.")
        right, steps = self.known[candidate.spec]
        self.now += 0.01 * n * steps
        self.asked.append((candidate.spec, n, skip))
        hard = np.random.default_rng(0).random(2000)[skip : skip + n]  # the same problems are hard for all
        return {
            "item_quality": [float(each < right) for each in hard], "item_forwards": [steps] * n, "n": n,
            "seconds": 0.01 * n * steps,
        }  # fmt: skip

    def unseen(self, candidate: Candidate, n: int, seen: int) -> dict[str, Any]:
        return self.attempt(candidate, n, 500)


FRONTIER = {f"careless {n}": (0.1 * n, n) for n in range(1, 8)}
FRONTIER |= {f"careful {n}": (0.9, 10 * n) for n in range(2, 10)} | {"sought": (0.89, 12), "best": (0.9, 18)}
FRONTIER |= {"confidence": (0.9, 60)}


def race(world: World, budget: float, specs: list[str] | None = None) -> tuple[Race, Candidate]:
    it = Race(world, 0.02, budget, clock=lambda: world.now)
    points = (spec.partition("/") for spec in specs or sorted(world.known))
    return it, it.run(
        [Candidate(spec, {}, spec + slash + place, place=int(place or 0)) for spec, slash, place in points]
    )


def test_it_finds_the_fewest_forwards_that_are_nearly_as_good() -> None:
    world = World(FRONTIER)
    it, chosen = race(world, 3000)
    assert chosen.spec == "sought"
    assert it.seen == 400, "there was time for all problems"
    assert FINALISTS <= len(it.finalists) < len(FRONTIER), "time for all problems, not for all settings"
    assert not it.untried
    seen = dict.fromkeys(FRONTIER, 0)
    for spec, n, skip in world.asked:
        assert skip == seen[spec], f"{spec} sees the same problems as all others, each once"
        seen[spec] += n
    assert min(seen.values()) == FIRST
    rows = shown(it, chosen, {})
    assert evidence(it, "").lines[0][0] == "sought"
    assert unseen_table(rows, it.cost).lines[0][0] == "sought"


# Steps and accuracy of confidence on pocket at six thresholds, from 1,000 problems, and the best that any decoder does.
CURVES = {
    "math": ([8.9, 12.7, 15.2, 19.5, 23.0, 31.2], [0.692, 0.857, 0.897, 0.901, 0.89, 0.89], 0.905),
    "code": ([10.1, 10.7, 11.0, 11.4, 11.9, 13.4], [0.096, 0.382, 0.537, 0.666, 0.749, 0.85], 0.893),
    "sudoku": ([4.5, 6.8, 7.5, 8.5, 9.3, 11.3], [0.05, 0.242, 0.462, 0.711, 0.847, 0.923], 0.955),
}


class Replay(World):
    """Ten decoders like those on pocket: curves like confidence's, faster or slower, better or worse, some hopeless.

    A candidate is (decoder)/(place on its curve). It is right where its skill is above how hard the problem is, for all
    and for this decoder, as on pocket; a step of a problem takes as long as there.
    """

    def __init__(self, task: str, seed: int) -> None:
        super().__init__({}, most=1000)
        normal, (steps, right, best) = NormalDist(), CURVES[task]
        self.rng = np.random.default_rng([seed, len(task)])
        self.hard, self.own = self.rng.normal(size=1000), dict[str, Any]()
        self.known = {"0/5": (best - 0.01, 96)}
        for decoder in range(1, 10):
            faster, skill = np.exp(self.rng.normal(0.03, 0.12)), self.rng.normal(-0.15, 0.3)
            skill -= self.rng.random() < 0.3
            for place in range(6):
                share = min(best, normal.cdf(normal.inv_cdf(right[place]) + skill))
                self.known[f"{decoder}/{place}"] = share, steps[place] * faster
        self.order = sorted(self.known, key=lambda name: abs(int(name[-1]) - 3) if name[0] != "0" else 0)
        bar = max(share for share, _ in self.known.values()) - 0.02
        self.sought = min((pace, share) for share, pace in self.known.values() if share >= bar)

    def attempt(self, candidate: Candidate, n: int, skip: int) -> dict[str, Any]:
        right, steps = self.known[candidate.name]
        for name in (candidate.spec, candidate.name):
            self.own.setdefault(name, self.rng.normal(size=1000))
        luck = 0.6 * self.hard + 0.45 * self.own[candidate.spec] + 0.66 * self.own[candidate.name]
        seconds = 0.007 * steps * (n + 4 * -(-n // 32))
        self.now += seconds
        marks = (luck[skip : skip + n] < NormalDist().inv_cdf(right)).astype(float).tolist()
        return {"item_quality": marks, "item_forwards": [steps] * n, "seconds": seconds}

    def met(self, chosen: Candidate) -> bool:
        """Within 2 points and 10 % of the steps of what is sought, in truth."""
        right, steps = self.known[chosen.name]
        return right >= self.sought[1] - 0.02 and steps <= 1.1 * self.sought[0]


def test_within_nine_minutes_it_mostly_finds_what_an_arena_would() -> None:
    """In simulated worlds with curves like pocket's. It is noisy: many settings are near the best one."""
    found = []
    for task in CURVES:
        for seed in range(12):
            world = Replay(task, seed)
            found.append(world.met(race(world, 540, world.order)[1]))
            assert world.now < 540
    assert np.mean(found) > 0.6, found


def test_the_budget_holds_and_what_had_no_time_is_said() -> None:
    world = World(FRONTIER)
    it, chosen = race(world, 40)
    assert world.now < 40
    assert it.untried
    assert {each.spec for each in it.untried} | {spec for spec, _, skip in world.asked} == FRONTIER.keys()
    assert chosen in it.finalists
    alone = World({"slow": (1.0, 10_000), "fast": (1.0, 1)})
    it, chosen = race(alone, 1, ["slow", "fast"])
    assert chosen.spec == "slow", "one is tried, whatever it takes"
    assert [each.spec for each in it.untried] == ["fast"]


def test_little_time_goes_to_few_settings() -> None:
    """Half of them could see only seven more problems each; a quarter can see more."""
    world = World({f"{n}": (0.9, 50) for n in range(40)})
    it, _ = race(world, 700)
    assert not it.untried
    assert it.seen > FIRST
    assert len(it.finalists) < 20
    assert world.now < 700


def test_what_is_faster_than_hopeless_is_not_tried() -> None:
    """If a decoder is far off at a careful value, its faster values are not tried."""
    world = World({"good": (0.9, 20), "bad": (0.3, 20)})
    it = Race(world, 0.02, 1e6, clock=lambda: world.now)
    it.run([Candidate(spec, {}, f"{spec} {place}", place=place) for place in (3, 2, 4) for spec in ("good", "bad")])
    assert [spec for spec, _, skip in world.asked if not skip] == ["good", "bad", "good", "good", "bad"]
    assert [each.name for each in it.hopeless] == ["bad 2"]
    assert not it.untried, "there was time for it"


def test_decoders_that_cannot_run_are_said_to() -> None:
    it, chosen = race(World({"works": (0.5, 5)}), 10, ["refuses", "works"])
    assert chosen.spec == "works"
    assert it.refused == {"refuses": "not on this model."}
    with pytest.raises(TacgError, match="not on this model"):
        race(World({}), 10, ["refuses"])


def test_few_problems_do_not_make_certain() -> None:
    def seen(hits: int, steps: int, n: int = 8) -> Candidate:
        return Candidate("", {}, "", [1.0] * hits + [0.0] * (n - hits), [steps] * n)

    early = chances([seen(7, 10), seen(8, 20)], 0.02)
    assert 0.1 < early[0] < 0.9, "one problem of eight may be a heavy one"
    late = chances([seen(400, 10, 400), seen(350, 20, 400)], 0.02)
    assert late[0] > 0.99
    close = chances([seen(360, 100, 400), seen(360, 105, 400)], 0.02)
    assert min(close) > 0.5, "neighbours do not take each other's chance"


def test_candidates_are_every_decoder_before_a_second_value() -> None:
    found = candidates_of(["confidence", "klass", "eb"], {"gen_length": 96, "block_length": 32}, {})
    assert [each.spec for each in found[:6]] == ["confidence", "klass", "eb"] * 2
    assert [each.settings for each in found[:6:3]] == [{"threshold": 0.9}, {"threshold": 0.8}]
    fixed = candidates_of(["confidence", "klass", "eb"], {}, {"threshold": 0.7, "kl_threshold": 0.1})
    assert [each.settings for each in fixed if each.spec == "klass"] == [{"threshold": 0.7, "kl_threshold": 0.1}]
    assert len([each for each in fixed if each.spec == "eb"]) == 6, "it has other knobs"
    assert {*SHORT_LIST} <= {*decoders()}


def test_what_is_reported_was_not_chosen_on(llm: tacg.LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a generated task the splits are disjoint; a set with one split, and prompts, are shared out."""
    tasks = [get_task("pocket-sudoku")]
    lines = [json.dumps({"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"}) for n in range(30)]
    (tmp_path / "set.jsonl").write_text("\n".join(lines))
    tasks.append(get_task("gsm8k", data=str(tmp_path / "set.jsonl")))
    candidate = Candidate("confidence", {"gen_length": 4, "block_length": 4}, "")
    for task in tasks:
        asked: list[Problem] = []
        real = grid.evaluate

        def spy(*args: Any, asked: list[Problem] = asked, task: Any = task, real: Any = real, **more: Any) -> Any:
            skip, n = more["skip"], more["n"]
            asked += list(task.problems(more["split"], skip + n, more["seed"]))[skip:]
            return real(*args, **more)

        monkeypatch.setattr(grid, "evaluate", spy)
        problems = Graded(llm, task, Ledger())
        assert problems.most == (1000 if task is tasks[0] else 20)
        for n, skip in ((8, 0), (8, 8), (4, 16)):
            assert len(problems.attempt(candidate, n, skip)["item_quality"]) == n
        rest = problems.unseen(candidate, 9, 20)
        assert len(rest["item_quality"]) == 9
        assert len({each.id for each in asked}) == 29, "each problem once"
        monkeypatch.setattr(grid, "evaluate", real)
    prompts = [f"Say {n}" for n in range(9)]
    agreeing = Agreeing(llm, prompts, {"gen_length": 4, "block_length": 4}, Ledger())
    assert agreeing.most == 6
    itself = Candidate("schedule", {}, "")
    assert agreeing.attempt(itself, 4, 2)["item_quality"] == [1.0] * 4, "one token per step agrees with itself"
    assert agreeing.unseen(itself, 8, 6)["n"] == 3


def test_the_command_line_recommends_with_and_without_labels(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("One prompt\n\nAnother\nA third\n")
    words = [TACG, "recommend", "-m", "tiny", "-p", "confidence", "-p", "eb", "--minutes", "0.05", "--json"]
    words += ["--set", "gen_length=8", "--out", str(tmp_path / "out")]
    for more in (
        ["-t", "pocket-sudoku", "--jobs", "2"],
        ["-t", "pocket-sudoku", "--no-labels", "--jobs", "1"],
        ["--prompts", f"{tmp_path}/mine.txt", "--jobs", "1"],
    ):
        done = subprocess.run([*words, *more], capture_output=True, text=True, timeout=300, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["decoder"] in ("confidence", "eb")
        assert found["tried"] + found["untried"] + found["hopeless"] == 12
        policy = tacg.get_policy(f"{found['decoder']}:{found['preset']}")
        assert policy.values().items() >= (found["settings"].items() - {("gen_length", 8)})
        assert [row["name"] for row in found["unseen"]][-1] == "confidence, defaults"
    done = subprocess.run([TACG, "recommend"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "recommend for: --task or --prompts" in done.stderr


def test_looking_ahead_is_paid_for_unless_steps_are_asked_for(llm: tacg.LLM) -> None:
    """One step of `lopa` is several forwards: it saves steps, not forwards."""
    lengths, prompts = {"gen_length": 8, "block_length": 8}, [f"Say {n}" for n in range(6)]
    paid = {}
    for cost in COSTS:
        race = Race(Agreeing(llm, prompts, lengths, Ledger()), 1.0, 60, cost=cost)
        ahead = Candidate("lopa", {"threshold": 0.99}, "lopa")
        race.run([ahead])
        paid[cost] = ahead.means[1]
    assert paid["steps"] < paid["forwards"] < paid["positions"]
