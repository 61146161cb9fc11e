"""The canvas resolving in a terminal: committed tokens coloured by reason, drafts dim, masks as dots."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from tacg.engine.events import Finished, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tacg.engine.events import Event
    from tacg.llm import LLM
    from tacg.types import Commit, Output

COLOURS = {"base": "green", "extra": "bold magenta", "fallback": "yellow"}


class CanvasView:
    """Draws one row's canvas from its step events."""

    def __init__(self, llm: LLM, title: str) -> None:
        self.llm = llm
        self.title = title
        self.commits: dict[int, Commit] = {}

    def draw(self, event: Step) -> Group:
        """The picture after a step."""
        self.commits |= {commit.position: commit for commit in event.committed}
        drafts = {each.position: each.token for each in event.proposals}
        text = Text()
        for position, token in enumerate(event.canvas):
            if commit := self.commits.get(position):
                newest = " reverse" if commit.step == event.step else ""
                text.append(self._spell(token), style=COLOURS[commit.reason] + newest)
            elif position in drafts:
                text.append(self._spell(drafts[position]), style="dim italic")
            else:
                text.append("·", style="dim")
        count = f"step {event.step} · block {event.block + 1} · {len(self.commits)}/{len(event.canvas)} committed"
        return Group(Panel(text, title=self.title, subtitle=count, width=100), legend())

    def _spell(self, token: int) -> str:
        return "∎" if token in self.llm.model.spec.eos_ids else self.llm.tokenizer.decode([token]) or " "


def legend() -> Text:
    """What the colours mean."""
    text = Text("  ")
    for reason, meaning in (
        ("base", "base"),
        ("extra", "promoted by the trajectory"),
        ("fallback", "fallback"),
    ):
        text.append(f"■ {meaning}   ", style=COLOURS[reason])
    return text.append("draft", style="dim italic").append("   · mask   ∎ end", style="dim")


def watch_one(llm: LLM, prompt: Any, policy: str, chat: bool | None, settings: dict[str, Any], delay: float) -> Output:
    """Decode a prompt while drawing it."""
    for event in watched(llm, llm.stream(prompt, policy, chat=chat, **settings), policy, delay):
        if isinstance(event, Finished):
            output = event.output
    return output


def watched(llm: LLM, events: Iterator[Event], policy: str, delay: float) -> Iterator[Event]:
    """Events of one row, drawn as they pass; the last picture stays on the screen, also after Ctrl-C."""
    console = Console(stderr=True)
    view = CanvasView(llm, f"{llm.model.spec.name} · {policy}")
    with Live(console=console, auto_refresh=False) as live:
        for event in events:
            if isinstance(event, Step):
                live.update(view.draw(event), refresh=True)
                if console.is_terminal:
                    time.sleep(delay)
            yield event
    if not console.is_terminal:
        console.line()  # a picture that goes to a file ends without one
