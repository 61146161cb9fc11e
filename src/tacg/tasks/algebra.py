"""A helper process: reads pairs of gold and answer, and reports whether `math-verify` finds them equal."""

from __future__ import annotations

import functools
import logging
import operator
import re
from typing import Any

from tacg.sandbox.wire import receive, send
from tacg.tasks.latex import last_box

# Decimals are compared exactly, to all their digits: 0.333333 is not 1/3.
PLACES = 30
RELATION = re.compile(r"[<>≤≥]|\\(?:[lg]eq?(?:slant)?|[lg]t|neq?)(?![a-zA-Z])")
EITHER = re.compile(r"\\(?:text|mbox|mathrm)\{\s*or\s*\}|\\lor(?![a-zA-Z])|\\vee(?![a-zA-Z])|\bor\b")
HEDGES = r"(?:approximately|approx\.?|about|roughly|around)"
SPELLINGS = (
    (re.compile(r"\\varnothing(?![a-zA-Z])|∅"), r"\\emptyset"),
    (
        re.compile(
            rf"(?<=\{{)\s*(?:\\(?:text|mbox|mathrm)\{{\s*{HEDGES}\s*\}}|{HEDGES}\s|\\(?:approx|sim|simeq)(?![a-zA-Z])|≈)"
        ),
        " ",
    ),
)


def equal(gold: str, answer: str, as_sets: bool = True) -> bool:
    """Whether two boxes are mathematically equal; unreadable ones are not. `as_sets`: x < 2 may mean (-oo, 2)."""
    from math_verify import parse, verify

    for pattern, new in SPELLINGS:
        gold, answer = pattern.sub(new, gold), pattern.sub(new, answer)
    try:  # a model's answer may raise anything when it is parsed
        told = [_either(answer)] if as_sets and EITHER.search(answer) and RELATION.search(answer) else parse(answer)
        return bool(verify(parse(gold), told, float_rounding=PLACES, allow_set_relation_comp=as_sets))
    except Exception:
        return False


def _either(answer: str) -> Any:
    """The values that satisfy any of the inequalities in the last box, as a set."""
    from math_verify import parse

    box = last_box(answer) or ""
    relations = [parse(f"\\boxed{{{part}}}")[0] for part in EITHER.split(box)]
    if len({symbol for relation in relations for symbol in relation.free_symbols}) != 1:
        raise ValueError("inequalities in one unknown are a set of numbers")
    return functools.reduce(operator.or_, (relation.as_set() for relation in relations))


def main() -> None:
    """Answer questions until the input ends."""
    logging.disable()
    while True:
        try:
            asked: Any = receive(0)
        except EOFError:
            return
        send(1, equal(*asked))


if __name__ == "__main__":
    main()
