"""Decode a task's problems with a policy and grade them: one row per item, and one summary row."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tacg.constraint.pattern import own_or
from tacg.engine.request import resolve
from tacg.errors import TacgError
from tacg.policies import find_preset
from tacg.records.results import Item, Results
from tacg.records.rows import key_of
from tacg.records.summary import summary
from tacg.records.surroundings import surroundings
from tacg.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tacg.policies import Policy
    from tacg.tasks import Problem, Task
    from tacg.types import Output


PATHS = (
    "data",
    "shots_data",
)  # task knobs that name files: only the content counts, and that is in the problems
GAIN = {"edit": 0, "remask": -1}  # change in the number of committed positions by reason; 1 for all others


class Decoder(Protocol):
    """Anything that decodes: an `LLM`, or a fleet of them."""

    @property
    def identity(self) -> Mapping[str, str]:
        """See `LLM.identity`."""
        ...

    @property
    def causal_block(self) -> int | None:
        """See `ModelSpec.causal_block`."""
        ...

    def generate(
        self, prompts: Any, policy: str | Policy = ..., *, batch_size: int = ...,
        on_output: Callable[[int, Output], None] | None = ..., **settings: Any,
    ) -> Any:  # fmt: skip
        """See `LLM.generate`."""
        ...


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The items of a run and its summary row."""

    items: tuple[Item, ...]
    row: dict[str, Any]


def evaluate(
    llm: Decoder,
    task: Task,
    policy: str | Policy,
    *,
    n: int,
    seed: int = 0,
    split: str = "test",
    skip: int = 0,
    batch_size: int = 32,
    settings: dict[str, Any] | None = None,
    on_item: Callable[[Item], None] | None = None,
    on_known: Callable[[Item], None] | None = None,
    out: Path | None = None,
    resume: bool = False,
) -> Evaluation:
    """Decode up to `n` problems and grade them. Settings belong to the policy or the decode.

    skip     how many problems of the sample to skip, because they were used before
    on_item  called with every item, those of an interrupted run first
    on_known if given, called instead of `on_item` with the items of an interrupted run
    out      a results file; with `resume`, only missing items are decoded
    """
    task.refuse_unready()
    settings = settings_of(task, policy, settings or {}, llm)
    problems = list(task.problems(split, skip + n, seed))[skip:]
    if not problems:
        raise TacgError(f"{task.name} has no problems to decode; is it the right file?")
    header = describe(llm, task, policy, settings, problems, split, seed)
    with Results(out, header, [problem.id for problem in problems], resume=resume) as results:
        if (tell := on_known or on_item) is not None:
            for known in results.items.values():
                tell(known)
        left = [number for number in range(len(problems)) if number not in results.items]

        def keep(place: int, output: Output) -> None:
            item = graded(task, problems[left[place]], output)
            results.add(left[place], item)
            if on_item is not None:
                on_item(item)

        began, worked = time.perf_counter(), time.process_time()
        if left:
            held = own_or(settings, [problems[number].held for number in left]) if problems[0].held else {}
            asked = [problems[number].asked for number in left]
            _decode(llm, asked, policy, batch_size, {**settings, **held}, keep)
        decoded, worked = time.perf_counter() - began, time.process_time() - worked
        results.finish()
        items = tuple(results.items[number] for number in range(len(problems)))
    tokens = sum(items[number].tokens for number in left)
    model = getattr(llm, "model", None)  # unknown for a fleet or a GPU, which work outside this process
    on_cpu = model is not None and model.device.type == "cpu"
    facts = {"split": split, "batch_size": batch_size, "settings": settings, "dtype": header["model"]["dtype"]}
    facts |= {"skip": skip} if skip else {}
    row = summary(items, task.name, header["model"]["model"], header["run"]["policy"], seed)
    return Evaluation(items, row | pace_of(tokens, decoded, worked if on_cpu else 0.0) | surroundings() | facts)


def _decode(
    llm: Decoder, prompts: list[Any], policy: str | Policy, batch_size: int, settings: Mapping[str, Any],
    keep: Callable[[int, Output], None],
) -> None:  # fmt: skip
    """Decode prompts and pass every output on at once, on another thread, because grading may take a while."""
    jobs: deque[Future[None]] = deque()
    with ThreadPoolExecutor(max_workers=2) as pool:

        def hand_over(place: int, output: Output) -> None:
            while jobs and jobs[0].done():
                jobs.popleft().result()  # if grading fails, stop decoding
            if not output.error:  # a failed row has no result: `generate` raises after the others are done
                jobs.append(pool.submit(keep, place, output))

        llm.generate(prompts, policy, batch_size=batch_size, on_output=hand_over, **settings)
    for job in jobs:
        job.result()


def graded(task: Task, problem: Problem, output: Output) -> Item:
    """Grade an answer."""
    grade = task.grade(problem, output.text)
    pace = [0] * output.steps
    for commit in output.commits:
        pace[commit.step - 1] += GAIN.get(commit.reason, 1)
    return Item(
        problem.id, grade.correct, grade.score, output.steps, output.forwards,
        len(output.tokens) - output.given, output.text, tuple(pace), grade.strict, grade.valid, output.positions,
        output.auxiliary,
    )  # fmt: skip


def describe(
    llm: Decoder, task: Task, policy: str | Policy, settings: dict[str, Any], problems: Sequence[Problem], split: str,
    seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Everything that the answers of a run depend on. The batch is not part of it: rows do not influence each other."""
    rule, decode = resolve(policy, settings)
    asked = [(each.id, each.prompt if each.infill else each.asked, each.answer, dict(each.data)) for each in problems]
    return {
        "run": {
            "task": task.name, "split": split, "seed": seed, "n": len(problems), "policy": rule.label,
            "base": getattr(getattr(rule, "base", None), "label", None), "data": key_of(problems=asked),
        },
        "model": identity_for(llm, rule),
        "task": {name: value for name, value in task.values().items() if name not in PATHS},
        "policy": rule.values(),
        "decode": {**decode.values(), "suppress": list(decode.suppress)},
        "versions": {"tacg": __version__, "torch": str(torch.__version__)},
    }  # fmt: skip


def identity_for(llm: Decoder, policy: Policy) -> dict[str, str]:
    """The identity of the model for this policy: the verifier is included only if the policy uses it."""
    asked = policy.needs.verifier is not None
    return {name: value for name, value in llm.identity.items() if asked or name != "verifier"}


def lengths_for(llm: Decoder | None, lengths: Mapping[str, Any]) -> dict[str, Any]:
    """What a task suggests, for this model. One that sees by blocks has a block length of its own."""
    own = llm is not None and llm.causal_block is not None
    return {name: value for name, value in lengths.items() if not (own and name == "block_length")}


def settings_of(
    task: Task, policy: str | Policy, settings: Mapping[str, Any], llm: Decoder | None = None
) -> dict[str, Any]:
    """The settings for a task: given settings override the task's lengths, which override a preset.

    For the paper's own tasks the preset overrides the task, because it has the published lengths.
    Rows fill the whole answer by default (`early_stop=False`), because that is how the paper counts tokens.
    """
    preset = find_preset(*policy.split(":", 1))["decode"] if isinstance(policy, str) and ":" in policy else {}
    own = lengths_for(llm, task.decode)
    lengths = {**preset, **own} if task.fixed else {**own, **preset}
    return {"early_stop": False, **lengths, **settings}


def pace_of(tokens: int, seconds: float, worked: float) -> dict[str, float]:
    """The speed of what this run decoded; items of an interrupted run are not counted.

    worked  seconds of processor time of all threads, if known: it hardly depends on what else is running
    """
    pace = {"seconds": seconds, "tokens_per_second": tokens / seconds if tokens else 0.0}
    return pace | ({"processor_seconds": worked, "tokens_per_processor_second": tokens / worked} if worked else {})
