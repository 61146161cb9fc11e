"""Stories about things that come and go, answered in free wording."""

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
    ("plus", "buys {b} more", "buys {b}"),
    ("plus", "finds {b}", "finds {b}"),
    ("plus", "wins {b}", "wins {b}"),
    ("minus", "gives {b} away", "gives {b}"),
    ("minus", "loses {b}", "loses {b}"),
    ("minus", "sells {b}", "sells {b}"),
]
# Possible steps of the reasoning. Each names its day, which identifies the event, and its result once, so that it
# cannot be copied from within the step. In the last two forms, the result stands before what it follows from, or far
# from it.
STEP = [
    "On {day} {he} {said} of them, which (makes|leaves) {after} {things}.",
    "{day}: the {things} {sign} {b} (make|give) {after} of them( now|).",
    "After {day} and {sign} {b} there (are|remain) {after} {things}( now|).",
    "There are( then|) {after} {things} on {day}, as {he} {said} of them.",
]
OPENING = "(At first|To begin) {he} has {start} {things}."
CLOSING = "(So|Finally) {he} has {end} {things}."


class Change(NamedTuple):
    """One event of a story: its day, its wordings, and the count after it."""

    day: str
    sign: str
    b: int
    told: str
    said: str
    after: int


class Story(NamedTuple):
    """Who has how many things at first, and what happens."""

    name: str
    things: str
    start: int
    events: list[Change]

    @property
    def end(self) -> int:
        """The count after the last event."""
        return self.events[-1].after


@dataclass(frozen=True)
class FreeMath(Task):
    """A person's things come and go over a week; answered in free wording. The last count must be right."""

    min_events: int = knob(5, "fewest events of a story", low=1, high=7)
    max_events: int = knob(6, "most events of a story", low=1, high=7)
    largest: int = knob(9, "largest amount of an event", low=2, high=50)
    blocks: int = knob(3, "blocks of 32 tokens that an answer may fill", low=2, high=6)

    name: ClassVar[str] = "free-math"

    @property
    def decode(self) -> Mapping[str, int]:
        """The maximum number of blocks of an answer."""
        return {"gen_length": 32 * self.blocks, "block_length": 32}

    def draw(self, rng: random.Random) -> tuple[str, Problem]:
        """A story, and its reasoning in one of very many wordings."""
        name, things = rng.choice(list(PEOPLE)), rng.choice(THINGS)
        count = rng.randint(self.min_events, self.max_events)
        first = rng.randint(0, len(DAYS) - count)  # so that every day is trained, even with few events
        start = value = rng.randint(5, 60)
        events: list[Change] = []
        for day in DAYS[first : first + count]:
            events.append(self._event(rng, day, value))
            value = events[-1].after
        he, story = PEOPLE[name], Story(name, things, start, events)
        told = " ".join(f"On {event.day} {he} {event.told}." for event in events)
        prompt = f"{name} has {start} {things}. {told} How many {things} does {name} have now?"
        most = self.decode["gen_length"]
        answer = fitting(lambda: _reasoning(rng, story), most * 5 // 6, most - 1)
        key = " ".join([str(start), *(f"{event.sign}{event.b}" for event in events)])
        return key, Problem("", prompt, answer, {"count": story.end, "things": things})

    def _event(self, rng: random.Random, day: str, value: int) -> Change:
        """An event that keeps the count between 1 and 99."""
        while True:
            sign, told, said = rng.choice(EVENTS)
            b = rng.randint(2, self.largest)
            after = value + (b if sign == "plus" else -b)
            if 1 <= after <= 99:
                return Change(day, sign, b, told.format(b=b), said.format(b=b), after)

    def grade(self, problem: Problem, answer: str) -> Grade:
        """The last count of the things ("23 apples") must be right."""
        last = re.findall(rf"(\d+) {problem.data['things']}", answer)[-1:]
        right = last == [str(problem.data["count"])]
        return Grade(right, float(right))


@dataclass(frozen=True)
class FreeMathHard(FreeMath):
    """The same with more events than any story in pocket's training data."""

    min_events: int = knob(7, "fewest events of a story", low=1, high=7)
    max_events: int = knob(7, "most events of a story", low=1, high=7)
    blocks: int = knob(4, "blocks of 32 tokens that an answer may fill", low=2, high=6)

    name: ClassVar[str] = "free-math-hard"


def _reasoning(rng: random.Random, story: Story) -> str:
    """The steps day by day, each in one of its forms."""
    he, things = PEOPLE[story.name], story.things
    sentences = [say(rng, OPENING, start=story.start, he=he, things=things)]
    sentences += [say(rng, rng.choice(STEP), he=he, things=things, **event._asdict()) for event in story.events]
    return " ".join([*sentences, say(rng, CLOSING, end=story.end, he=he, things=things)])
