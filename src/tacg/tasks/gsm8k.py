"""GSM8K (Cobbe et al., 2021): school mathematics in words; the final number counts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from tacg.tasks.base import Grade, Problem
from tacg.tasks.boxes import last_box
from tacg.tasks.files import FileTask, Item
from tacg.tasks.released import gsm8k_answer, gsm8k_gold

if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM = (
    "Your task is to answer the question below. Give step by step reasoning before you answer, and when you're ready "
    "to answer, please use the format 'The final answer is'."
)
AMOUNT = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
NUMBER = re.compile(rf"(?<![\w.)])([-−–]?)\s?\$?\s?(?<![\w.])({AMOUNT})(?:\s?/\s?(\d+)(?![\d.]))?")
PLACES = (r"####", r"answer(?: is|:)")  # where an answer is announced, surest first; but for a box
LONGEST = 300  # digits: what is longer is babble


@dataclass(frozen=True)
class GSM8K(FileTask):
    """School mathematics in words, 1,319 problems; graded on the final number."""

    name: ClassVar[str] = "gsm8k"
    needs: ClassVar[Mapping[str, Any]] = {"question": str, "answer": str}
    hub: ClassVar[tuple[str, str | None, str]] = ("openai/gsm8k", "main", "test")
    examples: ClassVar[str] = "train"

    def question(self, item: Item) -> str:
        """As the paper asks, or as its runs of LLaDA2 do."""
        if self.protocol == "paper":
            return str(item["question"])
        return f"Question: {item['question']}\nLet's think step by step\nAnswer:"

    def worked(self, item: Item) -> str:
        """The written solution, without the calculator's notes, and its number in the words asked for."""
        steps, _, number = re.sub(r"<<.*?>>", "", item["answer"]).partition("####")
        return f"{steps.strip()}\nThe final answer is {number.strip()}"

    def make(self, item: Item, name: str, prompt: str) -> Problem:
        """The number after #### is the answer."""
        system = SYSTEM if self.protocol == "paper" else ""
        gold = item["answer"].rpartition("####")[2].strip()
        return Problem(name, prompt, self.worked(item), {"gold": gold, "solution": item["answer"]}, system)

    def grade(self, problem: Problem, answer: str) -> Grade:
        """Equal as numbers, however they are written."""
        found = final_number(answer)
        right = found is not None and found == final_number(problem.data["gold"])
        strict = gsm8k_answer(answer) == gsm8k_gold(problem.data["solution"])
        return Grade(right, float(right), strict)


def final_number(text: str) -> Fraction | None:
    """The number that a text ends up with: in the last box, after the last #### or "answer is", or the last of all."""
    box = _plain(last_box(text) or "")
    if NUMBER.search(box):
        return _announced(box)
    text = _plain(text)
    for place in PLACES:
        *before, rest = re.split(place, text, flags=re.IGNORECASE)
        if before and NUMBER.search(rest):
            sentences = re.split(r"\n|\.(?:\s|$)", rest)
            return _announced(next(each for each in sentences if NUMBER.search(each)))
    found = list(NUMBER.finditer(text))
    return _value(found[-1]) if found else None


def _plain(text: str) -> str:
    """Without LaTeX's ways to write and to space numbers."""
    text = re.sub(r"\\d?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text)
    return re.sub(r"\\[!,;: ]|[*_`]|\\(?=[$%])|\\text\{|(?<=\d)[{}](?=,)|(?<=,)[{}](?=\d)", "", text)


def _announced(words: str) -> Fraction | None:
    """The first number after the last "=" that has one behind it: "5 + 3 = 8 eggs" says 8."""
    sums = [part for part in words.split("=") if NUMBER.search(part)]
    return _value(next(NUMBER.finditer(sums[-1])))


def _value(match: re.Match[str]) -> Fraction | None:
    sign, amount, below = match.groups()
    if len(match[0]) > LONGEST or (below is not None and int(below) == 0):
        return None
    value = Fraction(amount.replace(",", "")) / int(below or 1)
    return -value if sign else value
