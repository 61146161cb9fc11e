"""What a notebook shows: an answer as a small player of its decode, and a progress bar.

This is not the player of `tacg.trace`: an output has commits but no signals, and a notebook stores a copy of the player
with every output, so it has to be small (4 KB).
"""

from __future__ import annotations

import html
import json
import uuid
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacg.types import Output

SHOWN = 80  # characters of an answer in the `repr` of an output
MEANINGS = {
    "base": "accepted by the policy",
    "extra": "promoted by the trajectory",
    "fallback": "nothing passed, so the best candidate was taken",
    "finish": "written at once at the end",
    "branch": "from the chosen branch",
    "edit": "replaced another token",
    "forced": "the only token that the constraint allows",
}


def short(output: Output) -> str:
    """An output in one line: the beginning of its text, and what it cost."""
    text = output.text if len(output.text) <= SHOWN else f"{output.text[: SHOWN - 1]}…"
    facts = f"steps={output.steps}, forwards={output.forwards}, tpf={output.tpf:.2f}, policy={output.policy!r}"
    error = f", error={output.error!r}" if output.error else ""
    return f"Output({text!r}, {facts}, finish_reason={output.finish_reason!r}{error})"


def player(output: Output) -> str:
    """The decode of an output as HTML that needs nothing else. Without scripts, it shows the answer."""
    writes = [
        (each.step, each.position, None if each.reason == "remask" else spell(output, each.token), each.reason)
        for each in output.commits
    ]
    start = [None if each is None else spell(output, each) for each in _start(output)]
    cells: list[tuple[str | None, str]] = [(text, "") for text in start]
    for _, position, text, reason in writes:
        cells[position] = (text, "" if text is None else reason)
    seen = {reason for _, reason in cells}
    parts = {
        "id": f"tacg-{uuid.uuid4().hex[:12]}",
        "title": html.escape(output.policy),
        "counts": f"{output.steps} steps, {output.forwards} forwards, {output.tpf:.2f} tokens per forward",
        "steps": str(output.steps),
        "answer": "".join(_cell(text, reason) for text, reason in cells),
        "legend": " ".join(f'<b class="{name}">{words}</b>' for name, words in MEANINGS.items() if name in seen),
        "data": json.dumps({"start": start, "writes": writes}, ensure_ascii=False).replace("<", "\\u003c"),
    }
    page = resources.files("tacg").joinpath("notebook.html").read_text(encoding="utf-8")
    for name, value in parts.items():
        page = page.replace("{" + name + "}", value)
    return page


def spell(output: Output, token: int) -> str:
    """The text of a token."""
    return output.pieces.get(token, f"⟨{token}⟩")


def _start(output: Output) -> list[int | None]:
    """The canvas before the first step: given tokens, and None where something is to be written."""
    written = {each.position for each in output.commits}
    length = max(len(output.tokens), 1 + max(written, default=-1))
    return [
        None if place in written or place >= len(output.tokens) else output.tokens[place] for place in range(length)
    ]


def _cell(text: str | None, reason: str) -> str:
    if text is None:
        return "<i>·</i>"
    return f'<b class="{reason}">{html.escape(text)}</b>' if reason else html.escape(text)


class Progress:
    """A progress bar over answers. It counts parts of an answer, too, so that a single long one moves it."""

    def __init__(self, answers: int) -> None:
        from tqdm import tqdm  # plain text: it works in every terminal and notebook, without widgets

        form = "{l_bar}{bar}| {n:.1f} of {total} answers [{elapsed}<{remaining}{postfix}]"
        self.bar = tqdm(total=answers, bar_format=form)
        self.shares = dict[int, float]()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def tell(self, row: int, share: float, *, steps: int) -> None:
        """Called after each step with the written share of a row and its steps."""
        self.bar.set_postfix_str(f"step {steps}", refresh=False)
        self.bar.update(share - self.shares.get(row, 0.0))
        self.shares[row] = share
