"""What an answer puts into a box."""

from __future__ import annotations

import re


def last_box(text: str) -> str | None:
    r"""What the last \boxed{…} holds, or None."""
    found = None
    for start in re.finditer(r"\\f?boxed\s*\{", text):
        depth = 1
        for place in range(start.end(), len(text)):
            depth += (text[place] == "{") - (text[place] == "}")
            if depth == 0:
                found = text[start.end() : place]
                break
    return found
