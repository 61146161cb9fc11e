"""Free wording: one meaning, many sentences.

A template says what may be said: `(On {day}|By {day},) she has {n}( now|).` stands for four sentences. Who answers in
free wording leaves every position open until its neighbours are settled, as people do.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

# How pocket's tokenizer cuts text: a word or number with the space before it; a line break with its indentation; a run
# of other signs. Every piece that its training text holds is one token.
PIECES = r"\n(?: {4})*| ?[A-Za-z]+| ?\d{1,2}| ?[^\sA-Za-z\d]+|\s"
_INNERMOST = re.compile(r"\(([^()]*)\)")
ATTEMPTS = 24  # wordings that are tried for length


def say(rng: random.Random, template: str, **facts: object) -> str:
    """One of the sentences that a template stands for, with the facts in their places."""
    while found := _INNERMOST.search(template):
        template = template[: found.start()] + rng.choice(found[1].split("|")) + template[found.end() :]
    return template.format(**facts)


def fitting(write: Callable[[], str], least: int, most: int) -> str:
    """What `write` says first in `least` to `most` tokens; if that is rare, the longest of some that are short enough.

    Answers are decoded at a fixed length: one that is much shorter would leave a block of padding, which is no work.
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
    """How many tokens pocket's tokenizer makes of a text in the words it knows."""
    return len(re.findall(PIECES, text))
