"""MATH-500 (Hendrycks et al., 2021; Lightman et al., 2023): competition mathematics, graded by symbolic algebra."""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tacg.errors import TacgError
from tacg.sandbox.helper import Helper, Helpers
from tacg.tasks.base import Grade, Problem
from tacg.tasks.files import FileTask, SetItem
from tacg.tasks.gsm8k import SYSTEM
from tacg.tasks.latex import last_box
from tacg.tasks.numbers import whole_number
from tacg.tasks.released import math_equal

if TYPE_CHECKING:
    from collections.abc import Mapping

SET = re.compile(r"\\infty|\\cup|\\emptyset|[\[\]<>]|\\[lg]e")  # never part of a point
PATIENCE = 60  # seconds until an expression that algebra cannot settle counts as wrong


@dataclass(frozen=True)
class Math500(FileTask):
    """Competition mathematics, 500 problems; graded on the final expression by `math-verify`."""

    name: ClassVar[str] = "math500"
    needs: ClassVar[Mapping[str, Any]] = {"problem": str, "solution": str, "answer?": str, "unique_id?": str}
    hub: ClassVar[tuple[str, str | None, str]] = ("HuggingFaceH4/MATH-500", None, "test")

    def question(self, item: SetItem) -> str:
        """The paper's prompt, or that of its LLaDA2 runs."""
        if self.protocol == "paper":
            return str(item["problem"])
        return f"{item['problem']}\nLet's think step by step, and put your final answer within \\boxed{{}}."

    def worked(self, item: SetItem) -> str:
        """The written solution; its box is the answer."""
        return str(item["solution"])

    def make(self, item: SetItem, name: str, prompt: str) -> Problem:
        """The last box of the solution is the answer, unless the item has one."""
        gold = item.get("answer") or last_box(item["solution"])
        if gold is None:
            raise TacgError(f"Item {name} of the math500 set has neither `answer` nor a box in its `solution`.")
        data = {"gold": gold, "question": item["problem"], "solution": item["solution"]}
        system = SYSTEM if self.protocol == "paper" else ""
        return Problem(str(item.get("unique_id") or name), prompt, item["solution"], data, system)

    def refuse_unready(self) -> None:
        """Raise unless `math-verify` is installed."""
        _need_math_verify()

    def grade(self, problem: Problem, answer: str) -> Grade:
        """Right if the text, the number or the algebra is the same."""
        data = problem.data
        gold = data["gold"]
        same = same_number(gold, answer)
        right = same_words(gold, answer) or (same_by_algebra(gold, answer, data["question"]) if same is None else same)
        return Grade(right, float(right), math_equal(data["question"], data["solution"], answer))


def same_words(gold: str, answer: str) -> bool:
    """Whether the final answer is spelled like the gold one, ignoring spaces and markup: names are not algebra."""
    return _bare(_final(answer)) == _bare(gold) != ""


def same_number(gold: str, answer: str) -> bool | None:
    """Whether both are the same number; None unless both are just a number. (Algebra reads "thousand" as a unit.)"""
    mine, told = whole_number(gold), whole_number(_final(answer).strip().rstrip("."))
    return None if mine is None or told is None else mine == told


def _final(answer: str) -> str:
    """The content of the last box, or else what follows "answer is" up to the end of the line."""
    box = last_box(answer)
    return box if box is not None else re.split(r"answer is:?", answer)[-1].strip().split("\n")[0]


def _bare(text: str) -> str:
    text = re.sub(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\[()\[\]]|\\(?:left|right)\b|\\[!,;: ]|\$|\*\*", "", text).strip()
    text = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)  # "1 2" is not 12
    return re.sub(r"\\[dt]frac", r"\\frac", text).rstrip(".").lower()


def same_by_algebra(gold: str, answer: str, question: str = "") -> bool:
    """Whether `math-verify` finds them equal, in a separate process, because algebra may never end.

    The question distinguishes intervals from points: 2 < x < 3 is the interval (2, 3), not a point.
    """
    _need_math_verify()
    as_sets = SET.search(gold) is not None or "interval" in question.lower()
    with_box = answer if last_box(answer) is not None else _boxed_ending(answer)
    try:
        with _algebra.borrow("math-verify") as helper:
            return bool(helper.ask([f"\\boxed{{{gold}}}", with_box, as_sets], PATIENCE))
    except TimeoutError:
        return False


def _boxed_ending(answer: str) -> str:
    """An answer without a box, with its final statement put into one."""
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
