"""The recommendation: it finds what is there to find within its budget, on problems that it does not report on."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacg
from tacg.errors import TacgError
from tacg.experiments import grid
from tacg.experiments.recommend import (
    FINALISTS,
    FIRST,
    Agreeing,
    Candidate,
    Graded,
    Race,
    chances,
    evidence,
    short_list,
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
            "item_quality": [float(each < right) for each in hard], "item_steps": [steps] * n, "n": n,
            "steps": float(steps), "seconds": 0.01 * n * steps,
        }  # fmt: skip

    def unseen(self, candidate: Candidate, n: int, seen: int) -> dict[str, Any]:
        return self.attempt(candidate, n, 500)


FRONTIER = {f"careless {n}": (0.1 * n, n) for n in range(1, 8)}
FRONTIER |= {f"careful {n}": (0.9, 10 * n) for n in range(2, 10)} | {"sought": (0.89, 12), "best": (0.9, 18)}
FRONTIER |= {"confidence": (0.9, 60)}


def race(world: World, budget: float, specs: list[str] | None = None) -> tuple[Race, Candidate]:
    it = Race(world, 0.02, budget, clock=lambda: world.now)
    return it, it.run([Candidate(spec, {}, spec) for spec in specs or sorted(world.known)])


def test_it_finds_the_fewest_steps_that_are_nearly_as_good() -> None:
    world = World(FRONTIER)
    it, chosen = race(world, 3000)
    assert chosen.spec == "sought"
    assert it.seen == 400, "there was time for all problems"
    assert len(it.finalists) == FINALISTS
    assert not it.untried
    for spec, n, skip in world.asked:
        assert (n == FIRST) is (skip in (0, FIRST)), f"{spec} sees the same problems as all others, each once"
    rows = shown(it, chosen, {})
    assert evidence(it, "").lines[0][0] == "sought"
    assert unseen_table(rows).lines[0][0] == "sought"


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


def test_decoders_that_cannot_run_are_said_to() -> None:
    it, chosen = race(World({"works": (0.5, 5)}), 10, ["refuses", "works"])
    assert chosen.spec == "works"
    assert it.refused == {"refuses": "not on this model."}
    with pytest.raises(TacgError, match="not on this model"):
        race(World({}), 10, ["refuses"])


def test_few_problems_do_not_make_certain() -> None:
    def seen(hits: int, steps: int, n: int = 8) -> Candidate:
        return Candidate("", {}, "", [1.0] * hits + [0.0] * (n - hits), [steps] * n)

    early = chances([seen(8, 10), seen(7, 20), seen(0, 1)], 0.02)
    assert 0.5 < early[0] < 0.9
    assert early[1] > 0.1, "one wrong answer of eight rules nobody out"
    assert early[2] < 0.01
    late = chances([seen(400, 10, 400), seen(350, 20, 400)], 0.02)
    assert late[0] > 0.99
    close = chances([seen(360, 100, 400), seen(360, 105, 400)], 0.02)
    assert min(close) > 0.5, "neighbours do not take each other's chance"


def test_the_short_list_has_every_decoder_before_a_second_value() -> None:
    found = short_list(["confidence", "klass", "eb"], {"gen_length": 96, "block_length": 32}, {})
    assert [each.spec for each in found[:6]] == ["confidence", "klass", "eb"] * 2
    assert [each.settings for each in found[:6:3]] == [{"threshold": 0.9}, {"threshold": 0.8}]
    fixed = short_list(["confidence", "klass", "eb"], {}, {"threshold": 0.7, "kl_threshold": 0.1})
    assert [each.settings for each in fixed if each.spec == "klass"] == [{"threshold": 0.7, "kl_threshold": 0.1}]
    assert len([each for each in fixed if each.spec == "eb"]) == 3, "it has other knobs"


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
        ["-t", "pocket-sudoku"],
        ["-t", "pocket-sudoku", "--no-labels"],
        ["--prompts", f"{tmp_path}/mine.txt"],
    ):
        done = subprocess.run([*words, *more], capture_output=True, text=True, timeout=300, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["decoder"] in ("confidence", "eb")
        assert found["tried"] + found["untried"] == 6
        policy = tacg.get_policy(f"{found['decoder']}:{found['preset']}")
        assert policy.values().items() >= (found["settings"].items() - {("gen_length", 8)})
        assert [row["name"] for row in found["unseen"]][-1] == "confidence, defaults"
    done = subprocess.run([TACG, "recommend"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "either --task or --prompts" in done.stderr
