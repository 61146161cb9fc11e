"""What `pocket` can be asked, and a hint for prompts that are unlike its tasks."""

from __future__ import annotations

import re

# What every prompt of these tasks has in it; the tests compare with problems of each.
MARKS = (
    re.compile(r"\bhow many\b.*\bnow\b", re.IGNORECASE | re.DOTALL),
    re.compile(r"\bdef solve\("),
    re.compile(r"\bsudokus?\b", re.IGNORECASE),
)
KNOWS = "word problems, small Python functions and 4 by 4 sudokus"
HINT = f"pocket knows {KNOWS}, and nothing else; this prompt is none of these. `tacg tasks pocket-math` shows one."


def is_familiar(prompt: str) -> bool:
    """Whether a prompt looks like one of the tasks that pocket was trained on."""
    return any(mark.search(prompt) for mark in MARKS)
