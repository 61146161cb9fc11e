"""What a constraint does to the answers of a trained model, problem by problem, and how many steps it saves.

constrained          the default: a token that the constraint forces is written at once
without free tokens  the same constraint, but a forced token waits until the policy commits it, like any other
unconstrained        no constraint
own words            the same problems, answered in the form that the model was trained on, if that form differs
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tacg
from tacg.engine.events import Finished
from tacg.experiments.evaluate import evaluate
from tacg.llm import LLM
from tacg.records.summary import by_item, paired
from tacg.tasks import get_task, structured_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tacg.engine.events import Event
    from tacg.engine.request import Request
    from tacg.llm import Prompt
    from tacg.records.rows import ResultRow
    from tacg.types import Output

ARMS = ("constrained", "without free tokens", "unconstrained")


class ArmLLM(LLM):
    """A model whose requests are constrained as an arm says, and which keeps its outputs.

    To turn free tokens off, the automaton counts each token twice: then no token looks forced. What may be written does
    not change.
    """

    def __init__(self, llm: LLM, arm: str) -> None:
        super().__init__(llm.model, llm.tokenizer, llm.verifier)
        self.arm = arm
        self.outputs: list[Output] = []

    def held_to(self, pattern: str | None, request: Request, prompt: Prompt = "") -> Request:
        """The request with the constraint of this arm."""
        if self.arm not in ARMS[:2]:
            return request
        held = super().held_to(pattern, request, prompt)
        if self.arm == ARMS[0] or held.constraint is None:
            return held
        return replace(held, constraint=replace(held.constraint, many=2 * held.constraint.many))

    def _events(self, *words: Any, **more: Any) -> Iterator[Event]:
        for event in super()._events(*words, **more):
            if isinstance(event, Finished):
                self.outputs.append(event.output)
            yield event


def measure(model: str, n: int, policy: str = "tacg", seed: int = 0) -> Iterator[ResultRow]:
    """One row per task and arm. All but the first arm say how the first differs from them, paired by problem."""
    llm = tacg.load(model)
    for name in structured_names():
        first = _row(llm, name, name, ARMS[0], policy, n, seed)
        yield first
        for arm in ARMS[1:]:
            yield _against(first, _row(llm, name, name, arm, policy, n, seed))
        if name.endswith("-math"):
            yield _against(first, _row(llm, name, "pocket-math", "own words", policy, n, seed))


def _against(first: ResultRow, row: ResultRow) -> ResultRow:
    return {**row, "constrained_minus_this": paired(first, row)}


def _row(llm: LLM, subject: str, task: str, arm: str, policy: str, n: int, seed: int) -> ResultRow:
    """Rows stop at the end of an answer: otherwise free tokens after the end would count as savings."""
    mine = ArmLLM(llm, arm)
    done = evaluate(mine, get_task(task), policy, n=n, seed=seed, settings={"early_stop": True})
    return {
        "bench": "constraint", "part": "answers", "subject": subject, "arm": arm, "name": arm, **done.row,
        "forced": sum(output.forced for output in mine.outputs) / n,
        "cut": sum(output.cut for output in mine.outputs) / n, **by_item(done.items),
    }  # fmt: skip
