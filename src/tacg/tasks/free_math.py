"""Stories about two kinds of things, answered in free wording: day by day or thing by thing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from tacg.knobs import knob
from tacg.tasks.base import Grade, Problem, Task
from tacg.tasks.pocket_math import DAYS, PEOPLE, THINGS
from tacg.tasks.wording import fitting, say

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

# (sign, wording in the story, wording in the answer)
EVENTS = [
    ("+", "buys {b} {things}", "buys {b}"),
    ("+", "finds {b} {things}", "finds {b}"),
    ("+", "wins {b} {things}", "wins {b}"),
    ("-", "gives away {b} {things}", "gives {b}"),
    ("-", "loses {b} {things}", "loses {b}"),
    ("-", "sells {b} {things}", "sells {b}"),
]
# Possible steps of the reasoning. Each names its day, which identifies the event, its things, which identify the count
# before it, and its result once, so that nothing can be copied.
STEP = [
    "On {day} {he} {said} of them, which (makes|leaves) {after} {things}.",
    "{day}: the {things} {sign} {b} make {after} of them.",
    "After {day} and {sign} {b} there (are|remain) {after} {things} now.",
    "There are {after} {things} on {day}, as {he} {said} of them.",
]
OPENING = "At first {he} has {start}."
CLOSING = "(So|Finally) {he} has {end}."


class Change(NamedTuple):
    """One event of a story: its day and things, its wordings, and the count of these things after it."""

    day: str
    things: str
    sign: str
    b: int
    told: str
    said: str
    after: int


@dataclass(frozen=True)
class FreeMath(Task):
    """Two kinds of things come and go over a week; answered in free wording and order. Both counts must be right."""

    min_events: int = knob(5, "fewest events of a story", low=2, high=7)
    max_events: int = knob(6, "most events of a story", low=2, high=7)
    largest: int = knob(9, "largest amount of an event", low=2, high=50)
    blocks: int = knob(3, "blocks of 32 tokens that an answer may fill", low=2, high=6)

    name: ClassVar[str] = "free-math"

    @property
    def decode(self) -> Mapping[str, int]:
        """The maximum number of blocks of an answer."""
        return {"gen_length": 32 * self.blocks, "block_length": 32}

    def draw(self, rng: random.Random) -> tuple[str, Problem]:
        """A story, and its reasoning in one of very many wordings."""
        name, kinds = rng.choice(list(PEOPLE)), rng.sample(THINGS, 2)
        start = {kind: rng.randint(5, 60) for kind in kinds}
        events, counts = [], dict(start)
        days = rng.sample(range(len(DAYS)), rng.randint(self.min_events, self.max_events))
        for day in sorted(days):
            events.append(self._event(rng, DAYS[day], rng.choice(kinds), counts))
            counts[events[-1].things] = events[-1].after
        he, (one, two) = PEOPLE[name], kinds
        story = " ".join(f"On {event.day} {he} {event.told}." for event in events)
        prompt = f"{name} has {start[one]} {one} and {start[two]} {two}. {story}"
        prompt += f" How many {one} and {two} are there now?"
        most = self.decode["gen_length"]
        answer = fitting(lambda: _reasoning(rng, name, start, events, counts), most * 5 // 6, most - 1)
        key = " ".join([*map(str, start.values()), *(f"{kinds.index(e.things)}{e.sign}{e.b}" for e in events)])
        return key, Problem("", prompt, answer, {"counts": counts})

    def _event(self, rng: random.Random, day: str, things: str, counts: Mapping[str, int]) -> Change:
        """An event that keeps the count between 1 and 99."""
        while True:
            sign, told, said = rng.choice(EVENTS)
            b = rng.randint(2, self.largest)
            after = counts[things] + (b if sign == "+" else -b)
            if 1 <= after <= 99:
                word = "plus" if sign == "+" else "minus"
                return Change(day, things, word, b, told.format(b=b, things=things), said.format(b=b), after)

    def grade(self, problem: Problem, answer: str) -> Grade:
        """The last count of each kind of thing ("23 apples") must be right; the score is the share that is."""
        counts: Mapping[str, int] = problem.data["counts"]
        last = {things: re.findall(rf"(\d+) {things}", answer)[-1:] for things in counts}
        right = sum(last[things] == [str(count)] for things, count in counts.items())
        return Grade(right == len(counts), right / len(counts))


@dataclass(frozen=True)
class FreeMathHard(FreeMath):
    """The same with more events than any story in pocket's training data."""

    min_events: int = knob(7, "fewest events of a story", low=2, high=7)
    max_events: int = knob(7, "most events of a story", low=2, high=7)
    blocks: int = knob(4, "blocks of 32 tokens that an answer may fill", low=2, high=6)

    name: ClassVar[str] = "free-math-hard"


def _reasoning(
    rng: random.Random, name: str, start: Mapping[str, int], events: list[Change], counts: Mapping[str, int]
) -> str:
    """The steps day by day, or first all of one kind of things and then all of the other."""
    he = PEOPLE[name]
    order = rng.sample(list(start), 2)
    chapters = [order] if rng.random() < 0.5 else [[things] for things in order]
    sentences = []
    for kinds in chapters:
        sentences.append(say(rng, OPENING, start=" and ".join(f"{start[kind]} {kind}" for kind in kinds), he=he))
        for event in events:
            if event.things in kinds:
                sentences.append(say(rng, rng.choice(STEP), he=he, **event._asdict()))
    end = " and ".join(f"{counts[kind]} {kind}" for kind in rng.sample(list(start), 2))
    return " ".join([*sentences, say(rng, CLOSING, end=end, he=he)])
