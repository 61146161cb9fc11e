"""Decode a task's problems with a policy and grade them: one item row each, one summary row."""

from __future__ import annotations

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tacg.engine.request import resolve
from tacg.experiments.stats import wilson
from tacg.policies import find_preset
from tacg.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tacg.llm import LLM
    from tacg.policies import Policy
    from tacg.tasks import Task
    from tacg.types import Output


@dataclass(frozen=True, slots=True)
class Item:
    """One problem, decoded and graded."""

    id: str
    correct: bool
    score: float
    steps: int
    forwards: int
    tokens: int
    text: str
    commit_steps: tuple[int, ...]
    strict: bool | None = None

    @property
    def tpf(self) -> float:
        """Tokens per forward."""
        return self.tokens / self.forwards


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The items of a run and the row that sums them up."""

    items: tuple[Item, ...]
    row: dict[str, Any]


def evaluate(
    llm: LLM,
    task: Task,
    policy: str | Policy,
    *,
    n: int,
    seed: int = 0,
    split: str = "test",
    batch_size: int = 32,
    settings: dict[str, Any] | None = None,
    on_item: Callable[[Item], None] | None = None,
) -> Evaluation:
    """Decode `n` problems, or as many as there are, and grade them. Settings are the policy's or the decode's."""
    settings = settings_of(task, policy, settings or {})
    problems = list(task.problems(split, n, seed))
    prompts: list[Any] = [problem.asked for problem in problems]
    graded: dict[int, Item] = {}
    began = time.perf_counter()
    with ThreadPoolExecutor(max_workers=2) as pool:  # grading may run programs; decoding goes on meanwhile

        def judge(number: int, output: Output) -> None:
            grade = task.grade(problems[number], output.text)
            graded[number] = Item(
                problems[number].id, grade.correct, grade.score, output.steps, output.forwards, len(output.tokens),
                output.text, tuple(commit.step for commit in output.commits), grade.strict,
            )  # fmt: skip
            if on_item is not None:
                on_item(graded[number])

        jobs = []
        llm.generate(
            prompts, policy, batch_size=batch_size,
            on_output=lambda number, output: jobs.append(pool.submit(judge, number, output)), **settings,
        )  # fmt: skip
        decoded = time.perf_counter() - began
        for job in jobs:
            job.result()
    items = tuple(graded[number] for number in range(len(problems)))
    label = resolve(policy, settings)[0].label
    facts = {"split": split, "batch_size": batch_size, "settings": settings, "dtype": dtype_of(llm)}
    return Evaluation(items, summary(items, task.name, llm.model.spec.name, label, seed, decoded) | facts)


def settings_of(task: Task, policy: str | Policy, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a task is decoded with: what is said wins over the task's lengths, these over what a preset says.

    For the paper's own sets the preset wins over the task: it has the lengths that were published for them.
    Rows fill the whole answer (`early_stop=False`) unless told otherwise: that is how the paper counts tokens.
    """
    preset = find_preset(*policy.split(":", 1))["decode"] if isinstance(policy, str) and ":" in policy else {}
    lengths = {**preset, **task.decode} if task.fixed else {**task.decode, **preset}
    return {"early_stop": False, **lengths, **settings}


def summary(items: tuple[Item, ...], task: str, model: str, policy: str, seed: int, seconds: float) -> dict[str, Any]:
    """The row of a run. `tpf` is the mean over items of tokens / forwards, `tpf_ratio` total over total."""
    n, hits = len(items), sum(item.correct for item in items)
    tokens, forwards = sum(item.tokens for item in items), sum(item.forwards for item in items)
    return {
        "task": task,
        "model": model,
        "policy": policy,
        "n": n,
        "seed": seed,
        "accuracy": hits / n,
        "accuracy_ci": list(wilson(hits, n)),
        **strict_accuracy(items),
        "score": sum(item.score for item in items) / n,
        "steps": sum(item.steps for item in items) / n,
        "tpf": sum(item.tpf for item in items) / n,
        "tpf_ratio": tokens / forwards,
        "forwards": forwards,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        **surroundings(),
    }


def strict_accuracy(items: tuple[Item, ...]) -> dict[str, float]:
    """What the released code would report, for the sets that it reports on."""
    strict = [item.strict for item in items if item.strict is not None]
    return {"accuracy_strict": sum(strict) / len(strict)} if strict else {}


def dtype_of(llm: LLM) -> str:
    """The type that the model computes in."""
    weights = getattr(llm.model, "parameters", None)
    return str(next(weights()).dtype).removeprefix("torch.") if weights else "none"


def surroundings() -> dict[str, Any]:
    """What a number was measured with."""
    hardware = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    return {"version": __version__, "torch": torch.__version__, "hardware": hardware}
