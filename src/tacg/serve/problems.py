"""Problems of the tasks, for the page: fresh examples with the settings that suit them, and the grade of an answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacg import sandbox
from tacg.serve.refusal import bad
from tacg.tasks import free_names, get_task, task_names

if TYPE_CHECKING:
    from tacg.llm import LLM
    from tacg.tasks import Task
    from tacg.tasks.base import Problem

SEEDS = 1 << 31
RESULTS = re.compile(r" \d+(?= \w+\.|\.)")  # counts that a story's reasoning works out: one token each


@dataclass(frozen=True)
class Example:
    """One problem of the test split: the first of a seed."""

    task: str
    seed: int

    def __post_init__(self) -> None:
        known = [*task_names(), *free_names()]
        if self.task not in known:
            raise bad(f"`task` must be one of {', '.join(known)}.", "problem")

    @property
    def made(self) -> Task:
        """The task."""
        return get_task(self.task)

    @property
    def problem(self) -> Problem:
        """The problem itself."""
        (problem,) = self.made.problems("test", 1, self.seed)
        return problem

    def document(self, llm: LLM) -> dict[str, Any]:
        """What the page puts into its form; `template` is the reference answer of a story with holes."""
        problem, settings = self.problem, dict(self.made.decode)
        if llm.causal_block is not None:  # such a model has its own block length
            settings.pop("block_length", None)
        found = {"task": self.task, "seed": self.seed, "prompt": problem.prompt, "settings": settings}
        if self.task == "pocket-math":
            found["template"] = RESULTS.sub("⟨1⟩", problem.answer)
        return found

    def grade(self, text: str) -> dict[str, Any] | None:
        """Whether an answer is right; None if it cannot be graded here.

        A program is run only where the sandbox has its own namespaces: clients may choose what a model writes.
        """
        if self.task.removesuffix("-hard").endswith("-code") and sandbox.level() != "namespaces":
            return None
        grade = self.made.grade(self.problem, text)
        return {"correct": grade.correct, "score": grade.score, "reference": self.problem.answer}
