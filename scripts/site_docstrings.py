"""Docstrings for the documentation site: our lists of names and meanings become Markdown lists.

prompts    a text, a conversation, ids or a `Canvas`        - `prompts`: a text, a conversation, ids or a `Canvas`
policy     a name such as "tacg", or a Policy        ->     - `policy`: a name such as "tacg", or a Policy
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ENTRY = re.compile(r"^([\w,. ]*?\w)  +(\S.*)$")


class AlignedLists(Extension):
    """Rewrites every docstring on the way."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = with_lists(obj.docstring.value)


def with_lists(text: str) -> str:
    """The docstring with Markdown lists in place of aligned ones."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        entry = ENTRY.match(line) if not line.startswith(" ") else None
        if entry:
            if not inside and lines and lines[-1]:
                lines.append("")
            names = ", ".join(f"`{name.strip()}`" for name in entry[1].split(","))
            lines.append(f"- {names}: {entry[2]}")
            inside = True
        elif inside and line.startswith(" "):
            lines.append(f"  {line.strip()}")
        else:
            inside = False
            lines.append(line)
    return "\n".join(lines)
