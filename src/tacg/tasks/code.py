"""What the two sets of programs share: finding the program in an answer, and running it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacg.tasks.base import Grade
from tacg.tasks.files import FileTask
from tacg.tasks.sandbox import Trial, refuse_weaker, run, wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

FENCE = re.compile(r"```([^\n`]*)\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Programs(FileTask):
    """A set whose answers are programs."""

    def refuse_unready(self) -> None:
        """Programs that a model has written run in the sandbox only."""
        refuse_weaker(wanted())


def defines(source: str, name: str) -> bool:
    """Whether a source has a top-level function or class of this name."""
    return re.search(rf"^(?:async\s+)?(?:def|class)\s+{re.escape(name)}\b", source, re.MULTILINE) is not None


def program(answer: str, names: Sequence[str]) -> str:
    """The first block between fences that defines one of the names; else the first block; else the whole answer.

    Where the prompt opened a fence, the answer begins with the program and closes it.
    """
    answer = answer.replace("\r\n", "\n")
    blocks = [block for _, block in FENCE.findall(answer)]
    fitting = [block for block in blocks if any(defines(block, name) for name in names)]
    before, fence, _ = answer.partition("```")
    begins = before.strip() and (before[0] in " \t" or any(defines(before, name) for name in names))
    if not fitting and fence and begins:
        return before
    return str([*fitting, *blocks, answer][0])


def judged(trial: Trial, strict: Trial) -> Grade:
    """The grade of an answer as we read it and as the released code reads it; one run if the two agree."""
    verdict = run(trial)
    passed = all(verdict.passed)
    return Grade(passed, verdict.share, passed if strict == trial else all(run(strict).passed))
