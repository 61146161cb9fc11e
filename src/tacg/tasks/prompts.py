"""The user's own prompts. They have no reference answers, so nothing is graded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tacg.canvas import HOLE
from tacg.errors import TacgError
from tacg.files import read_text
from tacg.knobs import knob
from tacg.tasks.base import Grade, Problem, Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class OwnPrompts(Task):
    """The lines of a file. A line with holes, such as ⟨8⟩, is a canvas to fill; any other is a prompt to answer."""

    fixed = False

    file: str = knob("", "file with one prompt per line")

    @property
    def name(self) -> str:  # type: ignore[override]
        """The file's name, without its extension."""
        return Path(self.file).stem

    @property
    def decode(self) -> Mapping[str, int]:
        """The decode's default lengths."""
        return {}

    def problems(self, split: str = "test", n: int | None = None, seed: int = 0) -> Iterator[Problem]:
        """The first `n` lines that are not blank; there are no splits, and the seed has no effect."""
        lines = [line for line in read_text(Path(self.file), "file of prompts").splitlines() if line.strip()]
        if not lines:
            raise TacgError(f"{self.file} holds no prompt.")
        for number, line in enumerate(lines[:n]):
            yield Problem(f"{self.name}-{number + 1}", line, "", infill=HOLE.search(line) is not None)

    def grade(self, problem: Problem, answer: str) -> Grade:
        """Not graded: there is no reference answer."""
        return Grade(False, 0.0)
