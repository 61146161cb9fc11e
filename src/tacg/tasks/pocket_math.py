"""Word problems in several steps, similar to GSM8K: small numbers, written-out reasoning, one final answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tacg.knobs import knob
from tacg.tasks.base import Grade, Problem, Task

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

PEOPLE = {"Mia": "she", "Ana": "she", "Zoe": "she", "Ivy": "she", "Eva": "she"}
PEOPLE |= {"Tom": "he", "Ben": "he", "Leo": "he", "Sam": "he", "Max": "he"}
THINGS = ["apples", "books", "coins", "cards", "stamps", "shells", "marbles", "pencils", "stickers", "beads"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

# (sign, wording in the story, wording in the answer); {b} is the amount, {other} another person.
EVENTS = [
    ("+", "buys {b} more", "buys {b}"),
    ("+", "finds {b} more", "finds {b}"),
    ("+", "gets {b} from {other}", "gets {b}"),
    ("+", "wins {b} in a game", "wins {b}"),
    ("-", "gives {b} to {other}", "gives {b}"),
    ("-", "loses {b}", "loses {b}"),
    ("-", "sells {b}", "sells {b}"),
    ("-", "leaves {b} at school", "leaves {b}"),
    ("*", "ends up with {b} times as many", "has {b} times as many"),
]
SIGNS = {"+": "plus", "-": "minus", "*": "times"}


@dataclass(frozen=True)
class PocketMath(Task):
    """A person's things come and go over a week. Difficulty: how many events, and how large their amounts."""

    min_events: int = knob(4, "fewest events of a story", low=1, high=7)
    max_events: int = knob(6, "most events of a story", low=1, high=7)
    largest: int = knob(9, "largest amount of an event", low=2, high=99)

    name: ClassVar[str] = "pocket-math"

    @property
    def decode(self) -> Mapping[str, int]:
        """Three blocks."""
        return {"gen_length": 96, "block_length": 32}

    def draw(self, rng: random.Random) -> tuple[str, Problem]:
        """A story, and its reasoning in one of many wordings."""
        name, other = rng.sample(list(PEOPLE), 2)
        he, things = PEOPLE[name], rng.choice(THINGS)
        value = start = rng.randint(5, 60)
        story, reasoning, key = [], [], [str(start)]
        count = rng.randint(self.min_events, self.max_events)
        for day in DAYS[:count]:
            sign, told, said, b, after = self._event(rng, value)
            story.append(f"On {day} {he} {told.format(b=b, other=other)}.")
            reasoning.append(self._sentence(rng, day, f"{he} {said.format(b=b)}", f"{SIGNS[sign]} {b}", after, things))
            key.append(f"{sign}{b}")
            value = after
        opening = rng.choice([f"{name} starts with {start} {things}.", f"At first there are {start} {things}."])
        prompt = f"{name} has {start} {things}. {' '.join(story)} How many {things} does {name} have now?"
        answer = f"{opening} {' '.join(reasoning)} The answer is {value}."
        return " ".join(key), Problem("", prompt, answer, {"answer": value})

    def _event(self, rng: random.Random, value: int) -> tuple[str, str, str, int, int]:
        """An event that keeps the count between 1 and 99."""
        while True:
            sign, told, said = rng.choice(EVENTS)
            b = rng.randint(2, 3 if sign == "*" else self.largest)
            after = {"+": value + b, "-": value - b, "*": value * b}[sign]
            if 1 <= after <= 99:
                return sign, told, said, b, after

    def _sentence(self, rng: random.Random, day: str, said: str, step: str, after: int, things: str) -> str:
        """One step of the reasoning, in one of three wordings. Each result appears once, so nothing can be copied."""
        return rng.choice(
            [
                f"On {day} {said}, which makes {after}.",
                f"{day}: {step} is {after}.",
                f"After {day}, {step}, there are {after} {things}.",
            ]
        )

    def grade(self, problem: Problem, answer: str) -> Grade:
        """The last number after "answer is", or the last number of all if that is missing."""
        told = re.findall(r"answer is\s*(-?\d+)", answer) or re.findall(r"-?\d+", answer)
        right = bool(told) and int(told[-1]) == problem.data["answer"]
        return Grade(right, float(right))
