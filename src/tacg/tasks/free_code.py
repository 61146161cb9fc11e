"""Functions over lists in a free style: names, forms and comments vary. Graded by running them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tacg.knobs import knob
from tacg.tasks.base import Grade, Problem, Task
from tacg.tasks.pocket_code import ARGUMENTS, FILTERS, FUNCTION, MAPS, agreement, inputs
from tacg.tasks.wording import fitting

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    Step = tuple[str, str, list[str]]  # its kind, its description, ways to write it

# Possible names of the steps' lists. A name tells the number of its step, so that a line can be identified by it. The
# series is free, but a function keeps to one.
NAMES = [
    "first second third fourth fifth sixth seventh",
    "one two three four five six seven",
    "a b c d e f g",
]
LOOP_NAMES = ["n", "x", "v", "i"]
# Description in the docstring -> ways to write it; {v} is the loop variable, {xs} the list and {k} a number.
CONDITIONS = {told: [code] for told, code in FILTERS.items()}
CONDITIONS["keep the even numbers"] += ["not {v} % 2"]
CONDITIONS["keep the odd numbers"] += ["{v} % 2"]
CONDITIONS["keep the numbers above {k}"] += ["{k} < {v}"]
CONDITIONS["keep the numbers below {k}"] += ["{k} > {v}"]
CONDITIONS["keep the multiples of {k}"] += ["not {v} % {k}"]
EXPRESSIONS = {told: [code] for told, code in MAPS.items()}
WHOLE = {
    "sort them": ["sorted({xs})", "sorted(list({xs}))"],
    "sort them from high to low": ["sorted({xs}, reverse=True)", "sorted({xs})[::-1]"],
    "reverse the order": ["{xs}[::-1]", "list(reversed({xs}))"],
    "keep the first {k}": ["{xs}[:{k}]", "list({xs}[:{k}])"],
    "drop the first {k}": ["{xs}[{k}:]", "list({xs}[{k}:])"],
}
TABLES = {"filter": CONDITIONS, "map": EXPRESSIONS, "whole": WHOLE}
# How to write a step of each kind; {code} is its condition or expression.
FORMS = {
    "filter": [
        "{t} = [{v} for {v} in {xs} if {code}]",
        "{t} = list(filter(lambda {v}: {code}, {xs}))",
        "{t} = []\nfor {v} in {xs}:\n    if {code}:\n        {t}.append({v})",
    ],
    "map": [
        "{t} = [{code} for {v} in {xs}]",
        "{t} = list(map(lambda {v}: {code}, {xs}))",
        "{t} = []\nfor {v} in {xs}:\n    {t}.append({code})",
    ],
    "whole": ["{t} = {code}"],
}
RETURNS = {
    "return the list": ["return {xs}", "return list({xs})"],
    "return the sum": ["return sum({xs})", "total = sum({xs})\nreturn total"],
    "return how many there are": ["return len({xs})", "count = len({xs})\nreturn count"],
}
MOST = len(NAMES[0].split())
COMMENTED = 0.2  # share of steps whose description is repeated as a comment


@dataclass(frozen=True)
class FreeCode(Task):
    """A chain of list steps in a free style. Difficulty: how many steps, and how large their numbers."""

    min_steps: int = knob(2, "fewest steps before the return", low=1, high=7)
    max_steps: int = knob(3, "most steps before the return", low=1, high=7)
    largest: int = knob(9, "largest number in a step", low=3, high=99)
    blocks: int = knob(2, "blocks of 32 tokens that an answer may fill", low=2, high=6)

    name: ClassVar[str] = "free-code"

    @property
    def decode(self) -> Mapping[str, int]:
        """The maximum number of blocks of an answer."""
        return {"gen_length": 32 * self.blocks, "block_length": 32}

    def draw(self, rng: random.Random) -> tuple[str, Problem]:
        """A docstring, and one of very many ways to write the function."""
        argument = rng.choice(ARGUMENTS)
        steps = [self._step(rng) for _ in range(rng.randint(self.min_steps, self.max_steps))]
        first = rng.randint(1, 1 + MOST - len(steps))  # so that every number is trained, even with few steps
        end = rng.choice(list(RETURNS))
        said = [f"{number}: {told}" for number, (_, told, _) in enumerate(steps, first)]
        document = "".join(f"\n    {line}" for line in [*said, end])
        prompt = f'Write this function:\ndef {FUNCTION}({argument}):\n    """{document}\n    """'
        most = self.decode["gen_length"]
        answer = fitting(lambda: _written(rng, argument, steps, first, end), most * 5 // 6, most - 1)
        facts = {"function": FUNCTION, "reference": answer, "seed": rng.getrandbits(32)}
        return document, Problem("", prompt, answer, facts)

    def _step(self, rng: random.Random) -> Step:
        """A step's kind, its description, and ways to write it, with {v} and {xs} left open."""
        kind = rng.choice(list(TABLES))
        told, codes = rng.choice(list(TABLES[kind].items()))
        k = str(rng.randint(3 if "multiples" in told else 2, self.largest))  # multiples of 2 are the even numbers
        return kind, told.replace("{k}", k), [code.replace("{k}", k) for code in codes]

    def grade(self, problem: Problem, answer: str) -> Grade:
        """Run hidden tests: the function must agree with the reference on every input."""
        data = problem.data
        share = agreement(answer, data["reference"], data["function"], inputs(data["seed"]))
        return Grade(share == 1.0, share)


@dataclass(frozen=True)
class FreeCodeHard(FreeCode):
    """The same with more steps than any function in pocket's training data."""

    min_steps: int = knob(6, "fewest steps before the return", low=1, high=7)
    max_steps: int = knob(6, "most steps before the return", low=1, high=7)
    blocks: int = knob(4, "blocks of 32 tokens that an answer may fill", low=2, high=6)

    name: ClassVar[str] = "free-code-hard"


def _written(rng: random.Random, argument: str, steps: list[Step], first: int, end: str) -> str:
    """The function, written in one of the styles."""
    lines, source = [f"def {FUNCTION}({argument}):"], argument
    v, names = rng.choice(LOOP_NAMES), rng.choice(NAMES).split()
    for target, (kind, told, codes) in zip(names[first - 1 :], steps, strict=False):
        code = rng.choice(codes).format(v=v, xs=source)
        if rng.random() < COMMENTED:
            lines.append(f"# {told}")
        lines += rng.choice(FORMS[kind]).format(t=target, v=v, xs=source, code=code).splitlines()
        source = target
    lines += rng.choice(RETURNS[end]).format(xs=source).splitlines()
    return "\n    ".join(lines)
