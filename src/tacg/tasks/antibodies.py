"""Variable domains of antibodies with holes, the training data of antibody language models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tacg.errors import TacgError
from tacg.files import read_text
from tacg.knobs import knob
from tacg.tasks.holes import TextsWithHoles

SHIPPED = Path(__file__).parent / "data" / "antibodies.txt.gz"
LETTERS = frozenset("ACDEFGHIKLMNPQRSTVWY")


@dataclass(frozen=True)
class Antibodies(TextsWithHoles):
    """Variable domains of antibodies, partly masked; graded on the whole sequence and by amino acids."""

    kind: ClassVar[str] = "antibodies"

    # Less than for reactions: from half a sequence, nobody can guess every amino acid.
    masked: float = knob(0.2, "share of the amino acids that is masked", low=0.05, high=0.95)
    data: str | None = knob(None, "file of sequences in one-letter code, one per line (none: those in the package)")

    def texts(self) -> list[str]:
        """Heavy and light chains."""
        file = SHIPPED if self.data is None else Path(self.data).expanduser()
        lines = read_text(file, "file of antibodies", "pass the path of one with data=FILE").split("\n")
        found = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
        for line in found:
            if not LETTERS.issuperset(line):
                raise TacgError(f"{file} must hold a sequence of amino acids on each line, got {line[:80]!r}.")
        return found

    def tokens(self, text: str) -> list[str]:
        """Amino acids."""
        return list(text)
