"""Free wording: one meaning, many sentences.

A template describes possible sentences: `(On {day}|By {day},) she has {n}( now|).` stands for four of them. With free
wording, every position stays open until its neighbours are settled.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

# How pocket's tokenizer splits text: a word or number with the space before it; a line break with its indentation; a
# run of other characters. Every piece that occurs in its training text is one token.
PIECES = r"\n(?: {4})*| ?[A-Za-z]+| ?\d{1,2}| ?[^\sA-Za-z\d]+|\s"
_INNERMOST = re.compile(r"\(([^()]*)\)")
ATTEMPTS = 24  # wordings that are tried to reach the length


def say(rng: random.Random, template: str, **facts: object) -> str:
    """One of the sentences of a template, with the facts filled in."""
    while found := _INNERMOST.search(template):
        template = template[: found.start()] + rng.choice(found[1].split("|")) + template[found.end() :]
    return template.format(**facts)


def fitting(write: Callable[[], str], least: int, most: int) -> str:
    """The first text of `write` with `least` to `most` tokens; if that is rare, the longest of several that fit `most`.

    Answers are decoded at a fixed length: a much shorter one would leave a block of padding, which is trivial to fill.
    """
    best, longest = "", 0
    for attempt in range(1000):
        text = write()
        size = tokens_in(text)
        if longest < size <= most:
            best, longest = text, size
        if longest and (longest >= least or attempt >= ATTEMPTS):
            return best
    raise ValueError(f"No wording fits into {most} tokens, the last one was {text!r}.")


def tokens_in(text: str) -> int:
    """The number of tokens of a text whose words pocket's tokenizer knows."""
    return len(re.findall(PIECES, text))
