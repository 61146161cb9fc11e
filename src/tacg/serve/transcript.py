"""The text of an answer while it is written in any order: only what can no longer change is given out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tacg.llm import LLM
    from tacg.types import Commit

BROKEN = "\ufffd"  # what a tokenizer writes for a character whose bytes are not all there yet


class Piece(NamedTuple):
    """More text, with the tokens that it completes: (id, confidence at commit)."""

    text: str
    tokens: tuple[tuple[int, float], ...]


class Transcript:
    """One answer.

    Text is given out once everything to its left is committed, its bytes make whole characters, and it cannot be the
    beginning of a stop string. So the pieces, one after another, are the final text, and nothing is ever taken back.
    A stop string ends the text where it begins; the one that is complete first counts.
    """

    def __init__(self, llm: LLM, length: int, stop: Sequence[str] = (), *, tokens: bool = False) -> None:
        self._llm, self._stop, self._with_tokens = llm, tuple(stop), tokens
        self._canvas: list[tuple[int, float] | None] = [None] * length
        self._settled = 0  # positions to the left of the first mask
        self._given = 0  # characters
        self._told = 0  # tokens
        self.stopped = False

    def add(self, commits: Iterable[Commit]) -> Piece:
        """Take in commits; what they settle. Once `stopped`, there is no more to come."""
        before = self._settled
        self._write(commits)
        return self._give(final=False) if self._settled > before else Piece("", ())

    def close(self, commits: Iterable[Commit]) -> Piece:
        """The rest, when the row is done; `commits` are all of its commits."""
        self._write(commits)
        return self._give(final=True)

    def _write(self, commits: Iterable[Commit]) -> None:
        for commit in commits:
            self._canvas[commit.position] = (commit.token, commit.confidence)
        while self._settled < len(self._canvas) and self._canvas[self._settled] is not None:
            self._settled += 1

    def _give(self, *, final: bool) -> Piece:
        if self.stopped:
            return Piece("", ())
        words = self._words()
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

    def _words(self) -> list[tuple[int, float]]:
        """What is settled, up to the first EOS."""
        words: list[tuple[int, float]] = []
        for each in self._canvas[: self._settled]:
            if each is None or each[0] in self._llm.model.spec.eos_ids:
                break
            words.append(each)
        return words

    def _cut(self, text: str) -> int | None:
        """Where the first complete stop string begins: of those that end first, the longest."""
        found = [(place + len(stop), place) for stop in self._stop if (place := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _doubtful(self, text: str) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest

    def _completed(self, words: Sequence[tuple[int, float]], *, final: bool) -> tuple[tuple[int, float], ...]:
        """Tokens, not told before, whose text has been given out to the end."""
        began = self._told
        decode = self._llm.tokenizer.decode
        while self._told < len(words):
            if not final and len(decode([token for token, _ in words[: self._told + 1]])) > self._given:
                break
            self._told += 1
        return tuple(words[began : self._told])
