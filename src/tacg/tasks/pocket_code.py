"""Small functions over lists of numbers: from a signature and a docstring to Python. Graded by running it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tacg.knobs import knob
from tacg.sandbox import Trial, run
from tacg.tasks.base import Grade, Problem, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

FUNCTION = "solve"
ARGUMENTS = ["numbers", "values", "data", "items"]
LOOP_NAMES = ["n", "x", "v", "i"]
STEPS = "abcdefgh"  # names of the docstring's steps, and of the function's lists

# Description in the docstring -> condition or expression; {v} is the loop variable and {k} a number.
FILTERS = {
    "keep the even numbers": "{v} % 2 == 0",
    "keep the odd numbers": "{v} % 2 == 1",
    "keep the numbers above {k}": "{v} > {k}",
    "keep the numbers below {k}": "{v} < {k}",
    "keep the multiples of {k}": "{v} % {k} == 0",
}
MAPS = {
    "add {k} to each": "{v} + {k}",
    "subtract {k} from each": "{v} - {k}",
    "multiply each by {k}": "{v} * {k}",
    "square each": "{v} * {v}",
}
WHOLE = {
    "sort them": "sorted({xs})",
    "sort them from high to low": "sorted({xs}, reverse=True)",
    "reverse the order": "{xs}[::-1]",
    "keep the first {k}": "{xs}[:{k}]",
    "drop the first {k}": "{xs}[{k}:]",
}
RETURNS = {
    "return {xs}": "{xs}",
    "return the sum of {xs}": "sum({xs})",
    "return how many are in {xs}": "len({xs})",
}


@dataclass(frozen=True)
class PocketCode(Task):
    """A chain of named list steps. Difficulty: how many steps, and how large their numbers."""

    min_steps: int = knob(4, "fewest steps before the return", low=1, high=len(STEPS))
    max_steps: int = knob(5, "most steps before the return", low=1, high=len(STEPS))
    largest: int = knob(9, "largest number in a step", low=2, high=99)
    loops: float = knob(0.0, "share of functions that spell a step out as a loop", low=0, high=1)

    name: ClassVar[str] = "pocket-code"

    @property
    def decode(self) -> Mapping[str, int]:
        """Three blocks."""
        return {"gen_length": 96, "block_length": 32}

    def draw(self, rng: random.Random) -> tuple[str, Problem]:
        """A docstring, and one of many ways to write the function."""
        argument = rng.choice(ARGUMENTS)
        said, lines, source = [], [], argument
        loops = rng.random() < self.loops
        for target in STEPS[: rng.randint(self.min_steps, self.max_steps)]:
            kind, told, code = self._step(rng)
            lines += _lines(kind, code, rng.choice(LOOP_NAMES), source, target, loop=loops and kind != "whole")
            loops, source = loops and kind == "whole", target
            said.append(f"{target}: {told}")
        told, code = rng.choice(list(RETURNS.items()))
        lines.append(f"return {code.format(xs=source)}")
        document = "".join(f"\n    {line}" for line in [*said, told.format(xs=source)])
        prompt = f'Write this function:\ndef {FUNCTION}({argument}):\n    """{document}\n    """'
        answer = f"def {FUNCTION}({argument}):" + "".join(f"\n    {line}" for line in lines)
        seed = rng.getrandbits(32)
        return document, Problem("", prompt, answer, {"function": FUNCTION, "reference": answer, "seed": seed})

    def _step(self, rng: random.Random) -> tuple[str, str, str]:
        """A step's kind, its description and its code, with {v} and {xs} left open."""
        kind, table = rng.choice([("filter", FILTERS), ("map", MAPS), ("whole", WHOLE)])
        told, code = rng.choice(list(table.items()))
        k = str(rng.randint(3 if "multiples" in told else 2, max(3, self.largest)))  # multiples of 2: see "even"
        return kind, told.replace("{k}", k), code.replace("{k}", k)

    def grade(self, problem: Problem, answer: str) -> Grade:
        """Run hidden tests: the function must agree with the reference on every input."""
        data = problem.data
        share = agreement(answer, data["reference"], data["function"], inputs(data["seed"]))
        return Grade(share == 1.0, share)


def agreement(answer: str, reference: str, function: str, tried: list[list[int]]) -> float:
    """The share of inputs for which `answer` returns the same as `reference`, in value and type."""
    setup = f"space = {{}}\nexec({reference!r}, space)\n"
    setup += "def same(a, b):\n    return type(a) is type(b) and a == b"
    tests = [f"assert same({function}({each}), space[{function!r}]({each}))" for each in tried]
    return run(Trial(answer, tuple(tests), setup, (function,)), least="process").share


def inputs(seed: int) -> list[list[int]]:
    """Ten input lists: empty, short, and long enough that something is left after several steps."""
    rng = random.Random(seed)
    lists: list[list[int]] = [[], [rng.randint(1, 9)]]
    lists += [[rng.randint(-9, 40) for _ in range(rng.randint(6, 20))] for _ in range(4)]
    lists += [[rng.randint(0, 20) for _ in range(rng.randint(15, 40))] for _ in range(4)]
    return lists


def _lines(kind: str, code: str, v: str, source: str, target: str, *, loop: bool) -> list[str]:
    """A step as Python: one line, or a loop with append."""
    code = code.replace("{v}", v).replace("{xs}", source)
    if kind == "whole":
        return [f"{target} = {code}"]
    if not loop:
        body = f"{v} for {v} in {source} if {code}" if kind == "filter" else f"{code} for {v} in {source}"
        return [f"{target} = [{body}]"]
    loop_body = [f"if {code}:", f"    {target}.append({v})"] if kind == "filter" else [f"{target}.append({code})"]
    inner = [f"    {line}" for line in loop_body]
    return [f"{target} = []", f"for {v} in {source}:", *inner]


def reference_outputs(problem: Problem) -> list[Any]:
    """The reference answer's results on the hidden inputs (for tests of the task itself)."""
    space: dict[str, Any] = {}
    exec(problem.data["reference"], space)
    return [space[problem.data["function"]](list(each)) for each in inputs(problem.data["seed"])]
