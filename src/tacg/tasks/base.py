"""The base class of tasks: problems generated from a seed, in disjoint splits, and a grader."""

from __future__ import annotations

import hashlib
import importlib
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tacg.canvas import Canvas
from tacg.errors import TacgError, unknown
from tacg.knobs import Knobs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SPLITS = {"train": range(18), "dev": range(18, 19), "test": range(19, 20)}  # number of buckets out of 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    id      unique within its task
    prompt  the question for the model
    system  the system message, if any
    answer  a reference answer, one of many that the grader accepts
    data    what the grader needs
    infill  whether the prompt is a canvas, in which ⟨n⟩ is a hole of n tokens; the answer is the canvas filled
    held    the constraint on the answer, if there is one: a `schema`, a `regex` or `choices`
    """

    id: str
    prompt: str
    answer: str
    data: Mapping[str, Any] = field(default_factory=dict)
    system: str = ""
    infill: bool = False
    held: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> str | list[dict[str, str]] | Canvas:
        """The input for `LLM.generate`: the prompt, a conversation if there is a system message, or a canvas."""
        if self.infill:
            return Canvas.parse(self.prompt, self.system or None)
        told = [{"role": "system", "content": self.system}, {"role": "user", "content": self.prompt}]
        return told if self.system else self.prompt


@dataclass(frozen=True, slots=True)
class Grade:
    """Whether an answer is right; `score` is the share that is right, if an answer can be partly right.

    `strict` is the grade by the paper's released code, for the sets that the paper reports. `valid` is whether the
    answer is well-formed, right or not, for tasks that can check this.
    """

    correct: bool
    score: float
    strict: bool | None = None
    valid: bool | None = None


@dataclass(frozen=True)
class Task(Knobs):
    """A family of problems. Subclasses draw a problem from a random generator and grade answers.

    name    what users type
    decode  gen_length and block_length that suit its answers
    fixed   whether these lengths override a preset's, which were published for other tasks
    origin  the task whose problems these are, asked in another form: both have the same splits ("": its own)
    """

    name: ClassVar[str]
    origin: ClassVar[str] = ""
    fixed: ClassVar[bool] = True

    @property
    def decode(self) -> Mapping[str, int]:
        """The lengths that suit its answers."""
        raise NotImplementedError

    def draw(self, rng: random.Random) -> tuple[str, Problem]:
        """A random problem and its key. Problems with equal keys have the same solution and share a split."""
        raise NotImplementedError

    def grade(self, problem: Problem, answer: str) -> Grade:
        """Grade an answer."""
        raise NotImplementedError

    def refuse_unready(self) -> None:
        """Raise if this machine cannot grade answers, so that the user learns it before decoding."""

    def problems(self, split: str = "test", n: int | None = None, seed: int = 0) -> Iterator[Problem]:
        """Problems of a split, without repeats; the same seed gives the same ones. Endless without `n`.

        The hash of the key decides the split, so no problem is in two splits, whatever the seeds.
        """
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        if n is not None and n < 1:
            raise TacgError(f"`n` must be >= 1, got {n}.")
        origin = self.origin or self.name
        rng = random.Random(f"{origin}/{split}/{seed}")
        seen: set[str] = set()
        while n is None or len(seen) < n:
            key, problem = self.draw(rng)
            number = _digest(problem.prompt)
            if int(_digest(f"{origin}/{key}"), 16) % 20 in SPLITS[split] and number not in seen:
                seen.add(number)
                yield replace(problem, id=f"{self.name}-{number[:16]}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


_TASKS = {
    "pocket-math": "tacg.tasks.pocket_math:PocketMath",
    "pocket-code": "tacg.tasks.pocket_code:PocketCode",
    "pocket-sudoku": "tacg.tasks.pocket_sudoku:PocketSudoku",
}
_FREE = {
    "free-math": "tacg.tasks.free_math:FreeMath",
    "free-math-hard": "tacg.tasks.free_math:FreeMathHard",
    "free-code": "tacg.tasks.free_code:FreeCode",
    "free-code-hard": "tacg.tasks.free_code:FreeCodeHard",
}

_STRUCTURED = {
    "json-math": "tacg.tasks.structured:JsonMath",
    "tool-math": "tacg.tasks.structured:ToolMath",
    "infill-code": "tacg.tasks.structured:InfillCode",
}

_BENCHMARKS = {
    "gsm8k": "tacg.tasks.gsm8k:GSM8K",
    "math500": "tacg.tasks.math500:Math500",
    "humaneval": "tacg.tasks.humaneval:HumanEval",
    "mbpp": "tacg.tasks.mbpp:MBPP",
}


# The tasks for judges (`tacg judges`), by name, with their knobs.
_HOLES = {"reactions": "tacg.tasks.reactions:Reactions", "antibodies": "tacg.tasks.antibodies:Antibodies"}
_SHARES = {"reactions": (None, 0.3, 0.7), "antibodies": (None, 0.1, 0.3)}  # none: the task's own
_JUDGED: dict[str, dict[str, Any]] = {
    f"{kind}{f'-{100 * share:.0f}' if share else ''}{span}": ({"masked": share} if share else {})
    | ({"where": "span"} if span else {})
    for kind, shares in _SHARES.items() for span in ("", "-span") for share in shares
}  # fmt: skip


def task_names(model: str = "pocket") -> list[str]:
    """The tasks that `pocket-free` or `pocket` was trained on. They are generated, so they need no files."""
    return [name for name in free_names() if not name.endswith("-hard")] if model == "pocket-free" else sorted(_TASKS)


def free_names() -> list[str]:
    """The tasks in free wording, and harder forms that `pocket-free` was not trained on."""
    return sorted(_FREE)


def structured_names() -> list[str]:
    """Pocket's problems with answers of a given form."""
    return sorted(_STRUCTURED)


def benchmark_names() -> list[str]:
    """The paper's sets, each read from a file or downloaded."""
    return list(_BENCHMARKS)


def judged_names() -> list[str]:
    """Texts with holes for the judges, which are real masked language models."""
    return list(_JUDGED)


def all_names() -> list[str]:
    """Every task, in the order in which lists show them."""
    return [*task_names(), *free_names(), *structured_names(), *benchmark_names(), *judged_names()]


def get_task(name: str, **knobs: Any) -> Task:
    """A task by name; its knobs set the difficulty, or a benchmark's file and its prompts."""
    known = _TASKS | _FREE | _STRUCTURED | _BENCHMARKS | {each: _HOLES[each.partition("-")[0]] for each in _JUDGED}
    if name not in known:
        raise unknown("task", name, known, "tacg tasks")
    module, _, attribute = known[name].partition(":")
    made: Task = getattr(importlib.import_module(module), attribute)().replace(**_JUDGED.get(name, {}) | knobs)
    return made
