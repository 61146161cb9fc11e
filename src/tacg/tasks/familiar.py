"""What the built-in models can be asked, and a hint for prompts that are unlike their tasks."""

from __future__ import annotations

import re

# Kinds of problems, and what every prompt of each has in it; the tests compare with problems of the tasks.
MARKS = {
    "word problems": re.compile(r"\bhow many\b.*\bnow\b", re.IGNORECASE | re.DOTALL),
    "small Python functions": re.compile(r"\bdef solve\("),
    "4 by 4 sudokus": re.compile(r"\bsudokus?\b", re.IGNORECASE),
}
EXAMPLES = {"pocket": "pocket-math", "pocket-free": "free-math"}
_KINDS = {"pocket": list(MARKS), "pocket-free": list(MARKS)[:2]}


def knows(model: str) -> str | None:
    """The kinds of problems that a built-in model was trained on; None for other models."""
    kinds = _KINDS.get(model)
    return f"{', '.join(kinds[:-1])} and {kinds[-1]}" if kinds else None


def is_familiar(prompt: str, model: str = "pocket") -> bool:
    """Whether a prompt looks like one of the tasks that a built-in model was trained on."""
    return any(MARKS[kind].search(prompt) for kind in _KINDS[model])


def hint(model: str) -> str:
    """What to say to somebody who asks something else."""
    return (
        f"{model} knows {knows(model)}, and nothing else; this prompt is none of these. "
        f"`tacg tasks {EXAMPLES[model]}` shows one."
    )
