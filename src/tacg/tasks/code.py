"""What the two programming sets share: an answer is read in two ways, and each program is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacg.sandbox import Trial, refuse_weaker, run, wanted
from tacg.tasks.base import Grade
from tacg.tasks.files import FileTask

if TYPE_CHECKING:
    from tacg.tasks.base import Problem


@dataclass(frozen=True)
class Programs(FileTask):
    """A set whose answers are programs. Subclasses define what is run."""

    def refuse_unready(self) -> None:
        """Raise unless the sandbox works: model-written programs run only there."""
        refuse_weaker(wanted())

    def trial(self, problem: Problem, answer: str) -> Trial:
        """The program as we read it (`source.py`), and its tests."""
        raise NotImplementedError

    def released(self, problem: Problem, answer: str) -> Trial:
        """The program as the paper's released code reads it."""
        raise NotImplementedError

    def grade(self, problem: Problem, answer: str) -> Grade:
        """Every test must pass; the score is the share that does. Run once if both readings agree."""
        trial, released = self.trial(problem, answer), self.released(problem, answer)
        verdict = run(trial)
        passed = all(verdict.passed)
        return Grade(passed, verdict.share, passed if released == trial else all(run(released).passed))
