"""HumanEval (Chen et al., 2021): complete a Python function; graded by running its tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING, Any, ClassVar

from tacg.sandbox import Trial
from tacg.tasks.base import Problem
from tacg.tasks.code import Programs
from tacg.tasks.source import defines, program, sound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tacg.tasks.files import SetItem

SYSTEM = "You complete only Python code."


@dataclass(frozen=True)
class HumanEval(Programs):
    """Python functions to complete, 164 problems; graded by running their tests in the sandbox."""

    name: ClassVar[str] = "humaneval"
    needs: ClassVar[Mapping[str, Any]] = dict.fromkeys(
        ("task_id", "prompt", "entry_point", "canonical_solution", "test"), str
    )
    hub: ClassVar[tuple[str, str | None, str]] = ("openai/openai_humaneval", None, "test")

    def question(self, item: SetItem) -> str:
        """The function's head, or the instruction of the paper's LLaDA2 runs."""
        if self.protocol == "paper":
            return str(item["prompt"])
        return (
            "Write a solution to the following problem and make sure that it passes the tests:\n"
            f"```python\n{item['prompt']}\n```\n\n"
            "Please enclose your code within delimiters as follows:\n```python\n# YOUR CODE HERE\n```\n\n"
        )

    def worked(self, item: SetItem) -> str:
        """The whole function, fenced."""
        return f"```python\n{item['prompt']}{item['canonical_solution'].rstrip()}\n```"

    def make(self, item: SetItem, name: str, prompt: str) -> Problem:
        """The problem; its tests call `check` with the function."""
        data = {"head": item["prompt"], "test": item["test"], "function": item["entry_point"]}
        system = SYSTEM if self.protocol == "paper" else ""
        return Problem(item["task_id"], prompt, self.worked(item), data, system)

    def trial(self, problem: Problem, answer: str) -> Trial:
        """Accepts a whole function or only its body."""
        head, function = problem.data["head"], problem.data["function"]
        return _trial(problem.data, program(answer, [function], lambda code: completed(head, code, function)))

    def released(self, problem: Problem, answer: str) -> Trial:
        """The first block is stripped, so a bare body loses its first indentation and fails."""
        fenced = re.search(r"```(?:python)?\n(.*?)(?:```|$)", answer, re.DOTALL)
        return _trial(problem.data, problem.data["head"] + (fenced.group(1) if fenced else answer).strip())


def completed(head: str, code: str, function: str) -> str:
    """The program: the head's imports and helpers, with the answer's function."""
    if defines(code, function):
        return f"{head.rstrip(' ')}{code.strip()}\n"
    first, *rest = re.sub(r"(?m)^[ \t]+", lambda space: space.group().expandtabs(4), code.strip("\n")).split("\n")
    as_it_is = "\n".join([first, *rest])
    if first.startswith(" "):
        return head + as_it_is
    stripped = f"{head}    {as_it_is}"  # only the first line has lost its indentation
    return stripped if sound(stripped) else head + indent(as_it_is, "    ")


def _trial(data: Any, source: str) -> Trial:
    """The head is also given to the tests, because some use a function that it defines."""
    tests = (f"check({data['function']})",)
    return Trial(source, tests, f"{data['head']}\n{data['test']}", (data["function"],))
