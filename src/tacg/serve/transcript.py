"""The text of an answer while it is written in any order: only text that can no longer change is released."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.engine.events import Step
    from tacg.llm import LLM
    from tacg.types import Output

BROKEN = "\ufffd"  # what a tokenizer writes for a character whose bytes are incomplete
CERTAIN = 1.0  # the confidence of a given token


class Piece(NamedTuple):
    """More text, and the tokens that it completes: (id, confidence at commit)."""

    text: str
    tokens: tuple[tuple[int, float], ...]


class Transcript:
    """One answer.

    Text is released once it is settled (`Step.settled`: no policy will change it or anything to its left), its bytes
    form whole characters, and it cannot be the beginning of a stop string. So the pieces concatenate to the final text,
    and nothing is ever taken back. A stop string ends the text where it begins; the one that is completed first
    counts.
    """

    def __init__(self, llm: LLM, stop: Sequence[str] = (), *, tokens: bool = False, holes: bool = False) -> None:
        """holes: the answer fills a template, in which end of text leaves a position empty."""
        self._llm, self._stop, self._with_tokens, self._holes = llm, tuple(stop), tokens, holes
        self._sure: dict[int, float] = {}  # position -> confidence of the token written there last
        self._settled = 0  # positions
        self._given = 0  # characters
        self._told = 0  # tokens
        self.stopped = False

    def add(self, step: Step) -> Piece:
        """The text that a step settles. Once `stopped`, there is no more."""
        self._sure |= {commit.position: commit.confidence for commit in step.committed}
        if step.settled <= self._settled:
            return Piece("", ())
        self._settled = step.settled
        return self._give(step.canvas[: step.settled], final=False)

    def close(self, output: Output) -> Piece:
        """The remaining text, when the row is done."""
        self._sure |= {commit.position: commit.confidence for commit in output.commits}
        return self._give(output.tokens, final=True)

    def _give(self, ids: Sequence[int], *, final: bool) -> Piece:
        if self.stopped:
            return Piece("", ())
        words = self._words(ids)
        text = self._llm.tokenizer.decode([token for token, _ in words])
        if not final:
            text = text.rstrip(BROKEN)
        cut = self._cut(text)
        if cut is not None:
            self.stopped, end = True, cut
        else:
            end = len(text) if final else len(text) - self._doubtful(text)
        piece = text[self._given : end]
        self._given = max(self._given, end)
        return Piece(piece, self._completed(words, final=final and not self.stopped) if self._with_tokens else ())

    def _words(self, ids: Sequence[int]) -> list[tuple[int, float]]:
        """Settled tokens up to the first EOS, with their confidences."""
        eos = self._llm.model.spec.eos_ids
        words = [(token, self._sure.get(place, CERTAIN)) for place, token in enumerate(ids)]
        if self._holes:
            return [word for word in words if word[0] not in eos]
        return words[: next((place for place, token in enumerate(ids) if token in eos), len(words))]

    def _cut(self, text: str) -> int | None:
        """Where the first complete stop string begins; of those that end first, the longest."""
        found = [(place + len(stop), place) for stop in self._stop if (place := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _doubtful(self, text: str) -> int:
        """How many characters at the end may begin a stop string."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest

    def _completed(self, words: Sequence[tuple[int, float]], *, final: bool) -> tuple[tuple[int, float], ...]:
        """Tokens not reported yet whose text has been completely released."""
        began = self._told
        decode = self._llm.tokenizer.decode
        while self._told < len(words):
            if not final and len(decode([token for token, _ in words[: self._told + 1]])) > self._given:
                break
            self._told += 1
        return tuple(words[began : self._told])
