"""A row that a client waits for, and the events that it gets."""

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
    """A row's last event: its output, with the text of all pieces, and OpenAI's finish reason (stop or length)."""

    output: Output
    reason: str


Told = Started | Step | Piece | Done | Refusal


@dataclass(eq=False)
class Job:
    """A row that a client waits for.

    tell      callback for events, called in the batcher's thread; the last is a `Done` or a `Refusal`
    stream    report pieces of text as soon as they are final
    trace     report every step with all signals
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
    steps: int = 0  # reported so far; a restarted row does not repeat them
    text: str = ""
    transcript: Transcript | None = None
    shown: bool = False  # the client has seen a part of the answer, so it must not change any more

    @property
    def watched(self) -> bool:
        """Whether its intermediate steps are needed."""
        return self.trace or self.stream or bool(self.stop)

    def begin(self, llm: LLM) -> None:
        """Start, or start again: reset everything, unless a part of the answer was shown."""
        if not self.shown:
            self.steps, self.text = 0, ""
            self.transcript = Transcript(llm, self.stop, tokens=self.logprobs, holes=bool(self.request.canvas))

    def hear(self, told: Told) -> None:
        """Report an event, unless the job is cancelled."""
        if self.cancelled:
            return
        if isinstance(told, Piece | Step):
            self.shown = self.shown or self.stream or self.trace
        try:
            self.tell(told)
        except Exception:  # the client and its event loop are gone, or it reads too slowly
            self.cancelled = True

    def end(self, told: Refusal) -> None:
        """Report a refusal as the last event."""
        self.hear(told)
        self.cancelled = True
