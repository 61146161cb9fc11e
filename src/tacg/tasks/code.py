"""What the two sets of programs share: finding the program in an answer (`source.py`), and running it."""

from __future__ import annotations

from dataclasses import dataclass

from tacg.tasks.base import Grade
from tacg.tasks.files import FileTask
from tacg.tasks.sandbox import Trial, refuse_weaker, run, wanted


@dataclass(frozen=True)
class Programs(FileTask):
    """A set whose answers are programs."""

    def refuse_unready(self) -> None:
        """Programs that a model has written run in the sandbox only."""
        refuse_weaker(wanted())


def judged(trial: Trial, strict: Trial) -> Grade:
    """The grade of an answer as we read it and as the released code reads it; one run if the two agree."""
    verdict = run(trial)
    passed = all(verdict.passed)
    return Grade(passed, verdict.share, passed if strict == trial else all(run(strict).passed))
