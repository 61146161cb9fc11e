"""What the two sets of programs share: finding the program in an answer, and running it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tacg.tasks.base import Grade
from tacg.tasks.sandbox import Trial, run

if TYPE_CHECKING:
    from collections.abc import Sequence

FENCE = re.compile(r"```[ \t]*(?:[Pp]ython3?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def defines(source: str, name: str) -> bool:
    """Whether a source has a top-level function or class of this name."""
    return re.search(rf"^(?:async\s+)?(?:def|class)\s+{re.escape(name)}\b", source, re.MULTILINE) is not None


def program(answer: str, names: Sequence[str]) -> str:
    """The first block between fences that defines one of the names; else the first block; else the whole answer."""
    blocks = FENCE.findall(answer)
    fitting = [block for block in blocks if any(defines(block, name) for name in names)]
    return str([*fitting, *blocks, answer][0])


def judged(trial: Trial, strict: Trial) -> Grade:
    """The grade of an answer as we read it and as the released code reads it; one run if the two agree."""
    verdict = run(trial)
    passed = all(verdict.passed)
    return Grade(passed, verdict.share, passed if strict == trial else all(run(strict).passed))
