"""Extract the content of a LaTeX box."""

from __future__ import annotations

import re

MARK = re.compile(r"\\f?boxed\s*\{|\\.|[{}]", re.DOTALL)  # an escaped brace is printed and groups nothing


def last_box(text: str) -> str | None:
    r"""The content of the last closed \boxed{…}, or None."""
    found: tuple[int, str] | None = None
    open_at: list[tuple[int, bool]] = []  # for every open brace: where its content starts, and whether it is a box
    for mark in MARK.finditer(text):
        if mark[0][-1] == "{" and len(mark[0]) != 2:
            open_at.append((mark.end(), mark[0] != "{"))
        elif mark[0] == "}" and open_at:
            start, box = open_at.pop()
            if box and (found is None or start > found[0]):
                found = start, text[start : mark.start()]
    return found[1] if found else None
