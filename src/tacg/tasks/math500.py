"""MATH-500 (Hendrycks et al., 2021; Lightman et al., 2023): competition mathematics; equality is for algebra to say."""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tacg.errors import TacgError
from tacg.tasks.base import Grade, Problem
from tacg.tasks.boxes import last_box
from tacg.tasks.files import FileTask, Item
from tacg.tasks.gsm8k import SYSTEM
from tacg.tasks.helper import Helper, Helpers
from tacg.tasks.released import math_equal

if TYPE_CHECKING:
    from collections.abc import Mapping

PATIENCE = 60  # seconds before an expression that algebra does not come to an end with is called wrong


@dataclass(frozen=True)
class Math500(FileTask):
    """Competition mathematics, 500 problems; graded on the final expression by `math-verify`."""

    name: ClassVar[str] = "math500"
    needs: ClassVar[Mapping[str, Any]] = {"problem": str, "solution": str, "answer?": str, "unique_id?": str}
    hub: ClassVar[tuple[str, str | None, str]] = ("HuggingFaceH4/MATH-500", None, "test")

    def question(self, item: Item) -> str:
        """As the paper asks, or as its runs of LLaDA2 do."""
        if self.protocol == "paper":
            return str(item["problem"])
        return f"{item['problem']}\nLet's think step by step, and put your final answer within \\boxed{{}}."

    def worked(self, item: Item) -> str:
        """The written solution; its box is the answer."""
        return str(item["solution"])

    def make(self, item: Item, name: str, prompt: str) -> Problem:
        """The last box of the solution is the answer, unless the item names one."""
        gold = item.get("answer") or last_box(item["solution"])
        if gold is None:
            raise TacgError(f"Item {name} of the math500 set has neither `answer` nor a box in its `solution`.")
        data = {"gold": gold, "question": item["problem"], "solution": item["solution"]}
        system = SYSTEM if self.protocol == "paper" else ""
        return Problem(str(item.get("unique_id") or name), prompt, item["solution"], data, system)

    def refuse_unready(self) -> None:
        """Algebra is somebody else's work."""
        _need_math_verify()

    def grade(self, problem: Problem, answer: str) -> Grade:
        """The same letters, or the same by algebra."""
        data = problem.data
        right = same_words(data["gold"], answer) or same_by_algebra(data["gold"], answer)
        return Grade(right, float(right), math_equal(data["question"], data["solution"], answer))


def same_words(gold: str, answer: str) -> bool:
    """Whether the final answer is spelled like the gold one, but for spaces and marks: a name is no algebra."""
    told = last_box(answer)
    if told is None:
        told = re.split(r"answer is:?", answer)[-1].strip().split("\n")[0]
    return _bare(told) == _bare(gold) != ""


def _bare(text: str) -> str:
    text = re.sub(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\[()\[\]]|\\(?:left|right)\b|\\[!,;: ]|\$|\*\*", "", text).strip()
    text = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)  # "1 2" is not 12
    return re.sub(r"\\[dt]frac", r"\\frac", text).rstrip(".").lower()


def same_by_algebra(gold: str, answer: str) -> bool:
    """Whether `math-verify` finds them equal, in a process of its own: algebra may take for ever."""
    _need_math_verify()
    with_box = answer if last_box(answer) is not None else _boxed_ending(answer)
    try:
        with _algebra.borrow("math-verify") as helper:
            return bool(helper.ask([f"\\boxed{{{gold}}}", with_box], PATIENCE))
    except TimeoutError:
        return False


def _boxed_ending(answer: str) -> str:
    """An answer without a box, with what it says last put into one."""
    told = re.split(r"answer is:?", answer)
    if len(told) == 1:
        return answer
    ending = re.split(r"\.(?:\s|$)|\n", told[-1].strip())[0]
    return "\\boxed{" + re.sub(r"\\[()\[\]]|\$|\*\*", "", ending).strip() + "}"


@functools.cache
def _need_math_verify() -> None:
    from importlib.util import find_spec

    if find_spec("math_verify") is None:
        raise TacgError("math500 is graded with `math-verify`, which is not installed; pip install 'tacg[bench]'.")


_algebra = Helpers(lambda kind: Helper([sys.executable, "-m", "tacg.tasks.algebra"]))
