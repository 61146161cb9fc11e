"""A helper process: reads pairs of gold and answer, says whether `math-verify` finds them equal."""

from __future__ import annotations

import logging
from typing import Any

from tacg.tasks.wire import receive, send


def equal(gold: str, answer: str) -> bool:
    """Whether they are equal as mathematics; what cannot be read is not."""
    from math_verify import parse, verify

    try:  # the answer is a model's: anything may come of reading it
        return bool(verify(parse(gold), parse(answer)))
    except Exception:
        return False


def main() -> None:
    """Answer until nobody asks."""
    logging.disable()
    while True:
        try:
            asked: Any = receive(0)
        except EOFError:
            return
        send(1, equal(*asked))


if __name__ == "__main__":
    main()
