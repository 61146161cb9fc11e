"""Pocket's problems with answers of a given form: JSON, a tool call, a line within a program.

Pocket has never seen JSON. Its reasoning goes into a text field, so that the form costs it as little as possible. These
tasks measure how well it fills the other fields.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tacg.tasks.base import Grade, Problem
from tacg.tasks.pocket_code import PocketCode
from tacg.tasks.pocket_math import PEOPLE, THINGS, PocketMath

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

HOLE = 24  # tokens: more than in any line of pocket's programs
REASONING = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0, "maximum": 999}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


@dataclass(frozen=True)
class JsonMath(PocketMath):
    """The word problems of pocket-math, answered as {"reasoning": …, "answer": …}."""

    name: ClassVar[str] = "json-math"
    origin: ClassVar[str] = "pocket-math"  # pocket was trained on the other stories
    schema: ClassVar[dict[str, Any]] = _object(reasoning=REASONING, answer=COUNT)

    @property
    def decode(self) -> Mapping[str, int]:
        """Room for the reasoning and for the form around it."""
        return {"gen_length": 160, "block_length": 32}

    def draw(self, rng: random.Random) -> tuple[str, Problem]:
        """A story, and the reference answer in the required form."""
        key, problem = super().draw(rng)
        return key, replace(problem, answer=json.dumps(self._answer(problem)), held={"schema": self.schema})

    def _answer(self, problem: Problem) -> dict[str, Any]:
        return {"reasoning": problem.answer, "answer": problem.data["answer"]}

    def grade(self, problem: Problem, answer: str) -> Grade:
        """Whether the number is right; an answer is valid if it is JSON with these fields."""
        found = _read(answer)
        right = found is not None and _fields(found).get("answer") == problem.data["answer"]
        return Grade(right, float(right), valid=found is not None)


@dataclass(frozen=True)
class ToolMath(JsonMath):
    """The same as a tool call that records who has how many of what."""

    name: ClassVar[str] = "tool-math"
    schema: ClassVar[dict[str, Any]] = _object(
        name={"const": "note"},
        arguments=_object(
            owner={"enum": [*PEOPLE]}, item={"enum": THINGS}, reasoning=REASONING, count=COUNT
        ),
    )  # fmt: skip

    def _answer(self, problem: Problem) -> dict[str, Any]:
        return {
            "name": "note",
            "arguments": {**_told(problem), "reasoning": problem.answer, "count": problem.data["answer"]},
        }

    def grade(self, problem: Problem, answer: str) -> Grade:
        """Owner, item and count: the score is the share that is right, and all must be."""
        found = _read(answer)
        given = _fields(_fields(found).get("arguments"))
        asked = {**_told(problem), "count": problem.data["answer"]}
        share = sum(given.get(name) == value for name, value in asked.items()) / len(asked)
        return Grade(share == 1, share, valid=found is not None)


@dataclass(frozen=True)
class InfillCode(PocketCode):
    """A function of pocket-code with one line missing; everything before and after it is given."""

    name: ClassVar[str] = "infill-code"
    origin: ClassVar[str] = "pocket-code"

    def draw(self, rng: random.Random) -> tuple[str, Problem]:
        """A canvas whose hole must be filled with one line that is not empty."""
        key, problem = super().draw(rng)
        lines = problem.answer.split("\n")
        missing = rng.randrange(1, len(lines))
        before, after = "\n".join([*lines[:missing], "    "]), "\n".join(["", *lines[missing + 1 :]])
        held = {"regex": f"{re.escape(before)}[^\n]+{re.escape(after)}"}
        prompt = f"{before}⟨{HOLE}⟩{after}"
        return key, replace(problem, prompt=prompt, system=problem.prompt, infill=True, held=held)


def _told(problem: Problem) -> dict[str, str]:
    """Who has what, from the question: How many apples does Mia have now?"""
    words = problem.prompt.rstrip("?").split()
    return {"owner": words[-3], "item": words[-5]}


def _read(answer: str) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        return None


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
