"""A row that somebody waits for, and what is told of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tacg.engine.events import Started, Step
from tacg.serve.refusal import Refusal
from tacg.serve.transcript import Piece, Transcript

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacg.engine.request import Request
    from tacg.llm import LLM
    from tacg.types import Output


@dataclass(frozen=True, slots=True)
class Done:
    """A row's last word: what it did; its text, all pieces together; and OpenAI's reason, stop or length."""

    output: Output
    reason: str


Told = Started | Step | Piece | Done | Refusal


@dataclass(eq=False)
class Job:
    """A row that somebody waits for.

    tell      receives what happens, in the batcher's thread; the last is a `Done` or a `Refusal`
    stream    tell pieces of text as they settle
    trace     tell every step with everything measured
    deadline  seconds from now until it must be done
    """

    request: Request
    tell: Callable[[Told], None]
    deadline: float
    stop: tuple[str, ...] = ()
    stream: bool = False
    trace: bool = False
    logprobs: bool = False
    cancelled: bool = False
    began: float = field(default_factory=time.monotonic)
    steps: int = 0  # told so far; a row that has to start again repeats none
    text: str = ""
    transcript: Transcript | None = None
    shown: bool = False  # the client has seen a part of the answer: it can no longer become another one

    @property
    def watched(self) -> bool:
        """Whether its steps matter on the way."""
        return self.trace or self.stream or bool(self.stop)

    def begin(self, llm: LLM) -> None:
        """Nothing of it has been decoded; or nothing of that counts any more. What was shown does."""
        if not self.shown:
            self.steps, self.text = 0, ""
            self.transcript = Transcript(llm, self.stop, tokens=self.logprobs)

    def hear(self, told: Told) -> None:
        """Tell whoever waits, as long as somebody does."""
        if self.cancelled:
            return
        if isinstance(told, Piece | Step):
            self.shown = self.shown or self.stream or self.trace
        try:
            self.tell(told)
        except Exception:  # the one who waited is gone, and its event loop with it; or it reads too slowly
            self.cancelled = True

    def end(self, told: Refusal) -> None:
        """There is no more to come."""
        self.hear(told)
        self.cancelled = True
