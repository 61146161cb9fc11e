"""Texts with holes: real texts in which a share of the tokens is masked, for masked language models."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar

from tacg.errors import TacgError, unknown
from tacg.knobs import knob
from tacg.tasks.base import Grade, Problem, Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HALVES = ("dev", "test")


@dataclass(frozen=True)
class TextsWithHoles(Task):
    """Partly masked texts; graded on the whole text and by tokens. Subclasses define the texts and tokens."""

    kind: ClassVar[str]

    masked: float = knob(0.5, "share of the tokens that is masked", low=0.05, high=0.95)
    where: str = knob("random", "which ones: anywhere, or one span", choices=("random", "span"))

    def texts(self) -> list[str]:
        """All texts, without repeats."""
        raise NotImplementedError

    def tokens(self, text: str) -> list[str]:
        """Split a text into tokens as its models do."""
        raise NotImplementedError

    def given(self, token: str) -> bool:
        """Whether a token is never masked."""
        return False

    def valid(self, answer: str) -> bool | None:
        """Whether an answer is well-formed, right or not; None if this is not checked."""
        return None

    @property
    def name(self) -> str:  # type: ignore[override]
        """With its knobs: a table may have rows of several."""
        share = "" if self.masked == self.knobs()["masked"].default else f"-{100 * self.masked:.4g}"
        return f"{self.kind}{share}{'-span' if self.where == 'span' else ''}"

    @property
    def decode(self) -> Mapping[str, int]:
        """One block, because these models see the whole text."""
        return {"gen_length": 512, "block_length": 512}

    def problems(self, split: str = "test", n: int | None = None, seed: int = 0) -> Iterator[Problem]:
        """Texts of one half in a random order of this seed, `n` or all. A hash decides the half."""
        if split not in HALVES:
            raise unknown(f"split of {self.name}", split, HALVES)
        if n is not None and n < 1:
            raise TacgError(f"`n` must be >= 1, got {n}.")
        mine = [text for text in self.texts() if HALVES[_digest(text)[0] % 2] == split]
        random.Random(f"{self.kind}/{split}/{seed}").shuffle(mine)
        for text in mine[:n]:
            yield self._problem(text, random.Random(f"{self.name}/{text}/{seed}"))

    def _problem(self, text: str, rng: random.Random) -> Problem:
        tokens = self.tokens(text)
        places = [place for place, token in enumerate(tokens) if not self.given(token)]
        count = min(max(1, round(self.masked * len(tokens))), len(places))
        first = rng.randrange(len(places) - count + 1)
        holes = {*(places[first : first + count] if self.where == "span" else rng.sample(places, count))}
        prompt = ""
        for hole, run in groupby(range(len(tokens)), key=holes.__contains__):
            places = list(run)
            prompt += f"⟨{len(places)}⟩" if hole else "".join(tokens[place] for place in places)
        name = f"{self.kind}-{_digest(prompt).hex()[:16]}"
        return Problem(name, prompt, text, {"holes": sorted(holes)}, infill=True)

    def grade(self, problem: Problem, answer: str) -> Grade:
        """The whole text must be right; the score is the share of masked tokens that are right."""
        wanted, got = self.tokens(problem.answer), self.tokens(answer)
        holes: Sequence[int] = problem.data["holes"]
        hits = sum(place < len(got) and got[place] == wanted[place] for place in holes)
        return Grade(answer == problem.answer, hits / len(holes), valid=self.valid(answer))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
