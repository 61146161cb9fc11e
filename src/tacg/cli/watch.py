"""A live view of the canvas in a terminal: committed tokens coloured by reason, drafts dim, masks as dots."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from tacg.engine.events import Finished, Started, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tacg.engine.events import Event
    from tacg.llm import LLM
    from tacg.types import Commit, Output

# Reason -> colour and meaning. A re-masked token is gone, so the mark is on the draft or dot in its place.
REASONS = {
    "base": ("green", "base"),
    "extra": ("bold magenta", "promoted by the trajectory"),
    "fallback": ("yellow", "fallback"),
    "finish": ("cyan", "written at once at the end"),
    "branch": ("blue", "from the chosen branch"),
    "edit": ("bold bright_blue", "replaced another token"),
    "forced": ("bright_black", "the only token that the constraint allows"),
    "remask": ("red underline", "masked again"),
}
USUAL = ("base", "extra", "fallback")


class CanvasView:
    """Draws one row's canvas from its step events."""

    def __init__(self, llm: LLM, title: str) -> None:
        self.llm = llm
        self.title = title
        self.commits: dict[int, Commit] = {}  # the last reason of each position
        self.given: frozenset[int] = frozenset()  # positions that were never masked
        self.seen = dict.fromkeys(USUAL)

    def begin(self, event: Started) -> None:
        """Take in the canvas before the first step."""
        self.given = frozenset(at for at, token in enumerate(event.canvas) if token != self.llm.model.spec.mask_id)

    def draw(self, event: Step) -> Group:
        """The frame after a step."""
        self.commits |= {commit.position: commit for commit in event.committed}
        self.seen |= dict.fromkeys(commit.reason for commit in event.committed)
        drafts = {each.position: each.token for each in event.proposals}
        text = Text()
        for position, token in enumerate(event.canvas):
            text.append(*self._cell(event.step, position, token, drafts.get(position)))
        written = sum(commit.reason != "remask" for commit in self.commits.values())
        holes = len(event.canvas) - len(self.given)
        count = f"step {event.step} · block {event.block + 1} · {written}/{holes} committed"
        return Group(
            Panel(text, title=self.title, subtitle=count, width=100), legend(self.seen, given=bool(self.given))
        )

    def _cell(self, step: int, position: int, token: int, draft: int | None) -> tuple[str, str]:
        """What a position shows, and in which style."""
        if position in self.given:
            return self._spell(token), "none"
        commit = self.commits.get(position)
        style = REASONS[commit.reason][0] + " reverse" * (commit.step == step) if commit else ""
        if commit and commit.reason != "remask":
            return self._spell(token), style
        return ("·", f"dim {style}") if draft is None else (self._spell(draft), f"dim italic {style}")

    def _spell(self, token: int) -> str:
        return "∎" if token in self.llm.model.spec.eos_ids else self.llm.tokenizer.decode([token]) or " "


def legend(reasons: Iterable[str] = USUAL, *, given: bool = False) -> Text:
    """What the colours mean."""
    text = Text("  ")
    for reason in reasons:
        colour, meaning = REASONS[reason]
        text.append(f"■ {meaning}   ", style=colour)
    if given:
        text.append("given   ")
    return text.append("draft", style="dim italic").append("   · mask   ∎ end", style="dim")


def watch_one(llm: LLM, prompt: Any, policy: str, chat: bool | None, settings: dict[str, Any], delay: float) -> Output:
    """Decode a prompt while drawing it."""
    for event in watched(llm, llm.stream(prompt, policy, chat=chat, **settings), policy, delay):
        if isinstance(event, Finished):
            output = event.output
    return output


def watched(llm: LLM, events: Iterator[Event], policy: str, delay: float) -> Iterator[Event]:
    """Events of one row, drawn as they arrive; the last frame stays on the screen, also after Ctrl-C."""
    console = Console(stderr=True)
    view = CanvasView(llm, f"{llm.model.spec.name} · {policy}")
    with Live(console=console, auto_refresh=False) as live:
        for event in events:
            if isinstance(event, Started):
                view.begin(event)
            elif isinstance(event, Step):
                live.update(view.draw(event), refresh=True)
                if console.is_terminal:
                    time.sleep(delay)
            yield event
    if not console.is_terminal:
        console.line()  # output to a file ends without a newline
