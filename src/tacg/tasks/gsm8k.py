"""GSM8K (Cobbe et al., 2021): grade-school word problems; graded on the final number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tacg.tasks.base import Grade, Problem
from tacg.tasks.files import FileTask, SetItem
from tacg.tasks.latex import last_box
from tacg.tasks.numbers import FoundNumber, find_numbers, plain
from tacg.tasks.released import gsm8k_answer, gsm8k_gold

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

SYSTEM = (
    "Your task is to answer the question below. Give step by step reasoning before you answer, and when you're ready "
    "to answer, please use the format 'The final answer is'."
)
# Where an answer is announced (besides a box), most reliable first. Some models use #### for headings.
PLACES = (r"####(?=\W{0,3}\d)", r"answer(?:\s+(?:is|was|would be|should be|comes to|equals)\b|\s*[:=])")
SENTENCE = re.compile(r"\n|\.(?:\s|$)")
ASKED = re.compile(r"how many (dozen|hundred|thousand|million|billion|trillion)s?\b", re.IGNORECASE)

# What comes before a number that is a result, and after one that is not.
GLUE = (
    "a|about|all|an|and|answer|approximately|are|around|be|comes|cost|down|exactly|final|get|grand|have|in|is|it|it's|"
    "just|makes|means|nearest|of|only|or|out|roughly|rounded|s|that|that's|the|there|this|to|total|up|us|was|we|will"
)
EQUALS = re.compile(r"=|≈|⇒|→")
LEADS = re.compile(
    r"\b(?:so|thus|therefore|hence|i\.?e|equals?|which|totall?ing|totals?|sum|gives?|giving|makes?|making|"
    rf"round(?:s|ed|ing)?)\b(?:\W+(?:{GLUE})\b)*\W*$",
    re.IGNORECASE,
)
VERB = re.compile(rf"\b(?:is|are|was|were|has|have|had|be)\b(?:\W+(?:{GLUE})\b)*\W*$", re.IGNORECASE)
PART = re.compile(r"\s*(?:%|percent)\s*of\b|\s*times\b|(?:\s\w+){0,3}\s(?:than|out of)\b", re.IGNORECASE)
IN_TOTAL = re.compile(r"(?:\s*[\w$%]+){0,3}?\s(?:in total|in all|altogether|combined|total\b(?!\s+of))", re.IGNORECASE)
TOTAL = re.compile(r"\b(?:total|altogether|in all)\b", re.IGNORECASE)
DENIED = re.compile(r"\b(?:not|isn't|instead of|rather than)\s+[$€£]?$", re.IGNORECASE)
EXPLANATION = re.compile(r"\b(?:because|since)\b|\((?:check|verif|as\b)", re.IGNORECASE)
LABEL = re.compile(r":\s")  # Day 1: 5
# Between two numbers that do not form one: unevaluated sums, ranges, ratios, bare lists.
JOINT = re.compile(
    r"[\s$€£]*(?:[-−–+×x÷/:,;&]|and|or|to|plus|minus|times|divided by|, and|, or)?[\s$€£]*", re.IGNORECASE
)


@dataclass(frozen=True)
class GSM8K(FileTask):
    """Grade-school word problems, 1,319 in all; graded on the final number."""

    name: ClassVar[str] = "gsm8k"
    needs: ClassVar[Mapping[str, Any]] = {"question": str, "answer": str}
    hub: ClassVar[tuple[str, str | None, str]] = ("openai/gsm8k", "main", "test")
    examples: ClassVar[str] = "train"

    def question(self, item: SetItem) -> str:
        """The paper's prompt, or that of its LLaDA2 runs."""
        if self.protocol == "paper":
            return str(item["question"])
        return f"Question: {item['question']}\nLet's think step by step\nAnswer:"

    def worked(self, item: SetItem) -> str:
        """The written solution without calculator annotations, ending with its number in the requested wording."""
        steps, _, number = re.sub(r"<<.*?>>", "", item["answer"]).partition("####")
        return f"{steps.strip()}\nThe final answer is {number.strip()}"

    def make(self, item: SetItem, name: str, prompt: str) -> Problem:
        """The number after #### is the answer."""
        system = SYSTEM if self.protocol == "paper" else ""
        gold = item["answer"].rpartition("####")[2].strip()
        data = {"gold": gold, "question": item["question"], "solution": item["answer"]}
        return Problem(name, prompt, self.worked(item), data, system)

    def grade(self, problem: Problem, answer: str) -> Grade:
        """Numbers must be equal, in any notation."""
        found = final_number(answer, problem.data["question"])
        right = found is not None and found == final_number(problem.data["gold"])
        strict = gsm8k_answer(answer) == gsm8k_gold(problem.data["solution"])
        return Grade(right, float(right), strict)


def final_number(text: str, question: str = "") -> Fraction | None:
    """The final number of a text: in the last box, after #### or "answer is", or the last number of all.

    If the question asks for dozens, or thousands, "2 dozen" is 2; otherwise it is 24.
    """
    units = frozenset(word.lower() for word in ASKED.findall(question))
    box = plain(last_box(text) or "")
    if find_numbers(box, units):
        return _announced(box, units)
    text = plain(text)
    for place in PLACES:
        for rest in reversed(re.split(place, text, flags=re.IGNORECASE)[1:]):
            if told := [each for each in SENTENCE.split(rest) if find_numbers(each, units)]:
                return _first_or_total(told, units)
    lines = [line for line in text.split("\n") if line.strip()]
    found = find_numbers(text, units) or (find_numbers(lines[-1], units) if lines else [])
    if len(found) > 1 and JOINT.fullmatch(text[found[-2].end : found[-1].start]):
        return None
    return found[-1].value if found else None


def _first_or_total(sentences: list[str], units: frozenset[str]) -> Fraction | None:
    """The number of the first sentence, unless it begins a list: then the total that a later sentence gives."""
    first, *later = sentences
    numbers = find_numbers(first, units)
    direct = not re.search(r"\w", first[: numbers[0].start])
    if not (direct and len(numbers) == 1) and _told(first, numbers) is None:
        totals = [each for each in later if TOTAL.search(each)]
        return _announced(totals[0] if totals else first, units)
    return _announced(first, units)


def _announced(words: str, units: frozenset[str]) -> Fraction | None:
    """The result stated by the words, if there is exactly one: 8 in "5 + 3 = 8 eggs", none in "5 + 3" or "5 to 8"."""
    shorter = EXPLANATION.split(words, maxsplit=1)[0]
    words = shorter if find_numbers(shorter, units) else words
    numbers = find_numbers(words, units)
    meant = [
        number
        for number, after in zip(numbers, [*numbers[1:], None], strict=True)
        if not DENIED.search(words[max(0, number.start - 20) : number.start])
        and not (after is not None and LABEL.match(words[number.end : after.start]))
    ]
    if not meant:
        return None
    number = _told(words, meant) or meant[0]
    for after in meant[meant.index(number) + 1 :]:
        if not JOINT.fullmatch(words[number.end : after.start]):
            break
        if after.value != number.value:
            return None
        number = after
    return number.value


def _told(words: str, numbers: list[FoundNumber]) -> FoundNumber | None:
    """The last number that is introduced as a result, or that is called a total."""
    ends = [0, *(number.end for number in numbers)]
    starts = [*(number.start for number in numbers[1:]), len(words)]
    told: list[FoundNumber] = []
    totals: list[FoundNumber] = []
    opening = re.search(r"\w", words[: numbers[0].start])  # a whole sentence: its verb leads to the result
    for number, end, start in zip(numbers, ends, starts, strict=False):
        before, after = words[end : number.start], words[number.end : start]
        led = LEADS.search(before) or (opening and VERB.search(before))
        if EQUALS.search(before) or (led and not PART.match(after)):
            told.append(number)
        if IN_TOTAL.match(after):
            totals.append(number)
    return max([*told, *totals], key=lambda number: number.start, default=None)
