"""MBPP, sanitized (Austin et al., 2021): write a small Python function; graded by running its assertions."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tacg.knobs import knob
from tacg.sandbox import Trial
from tacg.shapes import COUNT
from tacg.tasks.base import Problem
from tacg.tasks.code import Programs
from tacg.tasks.files import SetItem, download
from tacg.tasks.source import program

if TYPE_CHECKING:
    from collections.abc import Mapping

TEST_IDS = range(11, 511)
SPLITS = ("prompt", "test", "validation", "train")  # on the hub, ordered by id


@dataclass(frozen=True)
class MBPP(Programs):
    """Small Python functions, 257 problems (the test split) or all 427; graded by running their assertions."""

    subset: str = knob("test", "the test split (ids 11 to 510), or all items", choices=("test", "all"))

    name: ClassVar[str] = "mbpp"
    needs: ClassVar[Mapping[str, Any]] = {
        "task_id": COUNT, "prompt": str, "code": str, "test_list": [str], "test_imports?": [str],
    }  # fmt: skip
    hub: ClassVar[tuple[str, str | None, str]] = ("google-research-datasets/mbpp", "sanitized", "test")
    examples: ClassVar[str] = "prompt"

    def items(self) -> list[SetItem]:
        """The items of the subset."""
        if self.data is None and self.subset == "all":
            return [item for split in SPLITS for item in self._checked(download(*self.hub[:2], split))]
        return [item for item in super().items() if self.subset == "all" or item["task_id"] in TEST_IDS]

    def question(self, item: SetItem) -> str:
        """The paper's prompt, with the tests as a Python list; or that of its LLaDA2 runs."""
        ask = f"You are an expert Python programmer, and here is your task: {item['prompt']} "
        ask += "Your code should pass these tests:\n\n"
        if self.protocol == "paper":
            return f"{ask}{item['test_list']}\n[BEGIN]"
        tests = "\n".join(item["test_list"])
        fence = "Please enclose your code within delimiters as follows:\n```python\n# YOUR CODE HERE\n```\n\n"
        return f"{ask}{tests}\n\n{fence}"

    def worked(self, item: SetItem) -> str:
        """The function, fenced."""
        return f"```python\n{item['code'].strip()}\n```"

    def make(self, item: SetItem, name: str, prompt: str) -> Problem:
        """A name that the tests use and the reference defines belongs to the answer, even if Python has the same."""
        tests = "\n".join(item["test_list"])
        defined = re.findall(r"^(?:def|class)\s+(\w+)", item["code"], re.MULTILINE)
        data = {
            "tests": tuple(item["test_list"]),
            "imports": "\n".join(item.get("test_imports") or []),
            "functions": tuple(sorted({*defined} & {*re.findall(r"\w+", tests)})),
            "modules": not sys.stdlib_module_names.isdisjoint(re.findall(r"\b(\w+)\.\w", tests)),
        }
        return Problem(str(item["task_id"]), prompt, self.worked(item), data)

    def trial(self, problem: Problem, answer: str) -> Trial:
        """The tests may use their imports, and standard modules without an import."""
        functions = problem.data["functions"]
        source = program(between_marks(answer), functions).strip("\n")
        return Trial(source, problem.data["tests"], problem.data["imports"], functions, problem.data["modules"])

    def released(self, problem: Problem, answer: str) -> Trial:
        """Reads only a closed fence that names its language; the tests' own imports are left out."""
        fenced = re.search(r"```python(.*?)```", answer, re.DOTALL)
        source = (fenced.group(1) if fenced else answer).strip("\n")
        return Trial(source, problem.data["tests"], "", problem.data["functions"], modules=False)


def between_marks(answer: str) -> str:
    """The text between the prompt's marks, each at an end of its line; models may continue after [DONE]."""
    until = re.split(r"(?m)^[ \t]*\[DONE\]|\[DONE\][ \t]*$", answer.replace("\r\n", "\n"))[0]
    return re.split(r"(?m)^[ \t]*\[BEGIN\]|\[BEGIN\][ \t]*$", until)[-1]
