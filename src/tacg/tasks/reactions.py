"""Chemical reactions with holes, the training data of reaction language models, at any masked share."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tacg.errors import TacgError
from tacg.files import read_text
from tacg.knobs import knob
from tacg.tasks.holes import TextsWithHoles

SHIPPED = Path(__file__).parent / "data" / "reactions.txt.gz"
TOKEN = re.compile(r"\[[^\]]+\]|%\(\d{3}\)|%\d{2}|Br|Cl|>>|.")
RING = re.compile(r"%\(\d{3}\)|%\d{2}|\d")


@dataclass(frozen=True)
class Reactions(TextsWithHoles):
    """Chemical reactions, partly masked; graded on the whole text, by tokens and by syntax."""

    kind: ClassVar[str] = "reactions"

    arrow: bool = knob(False, "whether the arrow may be masked, too (rxnfp never learned to write it)")
    check: str = knob(
        "syntax", "what is valid: closed brackets and rings, or also valence", choices=("syntax", "valence")
    )
    data: str | None = knob(None, "file of reactions as SMILES, one per line (none: those in the package)")

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name with its knobs, because a table may have rows of several."""
        return super().name + ("-arrow" if self.arrow else "")

    def refuse_unready(self) -> None:
        """Raise unless the chemistry library that checks valences is installed, if it is needed."""
        if self.check == "valence" and importlib.util.find_spec("rdkit") is None:
            raise TacgError("`check` valence needs the library rdkit: pip install rdkit, or use check=syntax.")

    def texts(self) -> list[str]:
        """All reactions."""
        return _reactions(self.data)

    def tokens(self, text: str) -> list[str]:
        """Split a reaction as its models do."""
        return smiles_tokens(text)

    def given(self, token: str) -> bool:
        """The arrow is given, unless a knob says otherwise."""
        return ">" in token and not self.arrow

    def valid(self, answer: str) -> bool:
        """Check the syntax, and valences if requested."""
        return well_formed(answer) and (self.check == "syntax" or valence_holds(answer))


def _reactions(data: str | None) -> list[str]:
    """All reactions, without repeats."""
    file = SHIPPED if data is None else Path(data).expanduser()
    lines = read_text(file, "file of reactions", "pass the path of one with data=FILE").split("\n")
    found = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    for line in found:
        if ">" not in line or "⟨" in line:
            raise TacgError(f"{file} must hold a reaction on each line, such as CCO>>CC=O; got {line[:80]!r}.")
    return found


def smiles_tokens(text: str) -> list[str]:
    """Atoms, bonds, brackets, ring closures and the arrow, split as reaction models do."""
    return TOKEN.findall(text)


def well_formed(text: str) -> bool:
    """Whether there is one arrow, no side is empty, brackets close, and every opened ring is closed."""
    sides = text.split(">")
    if len(sides) != 3 or not sides[0] or not sides[2]:
        return False
    return all(_closed(molecule) for side in sides for molecule in side.split(".") if side)


def _closed(molecule: str) -> bool:
    """Check one molecule. A branch follows an atom and is not empty, so "C()C", "(C)C" and "C(" are wrong."""
    tokens = smiles_tokens(molecule)
    depth = 0
    for before, token in zip(["(", *tokens], tokens, strict=False):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth < 0 or (before == "(" and token in "()"):
            return False
    rings = Counter(token for token in tokens if RING.fullmatch(token))
    whole = all(token not in ("[", "]") for token in tokens)  # left over from an unclosed bracket atom
    return bool(tokens) and depth == 0 and whole and all(count % 2 == 0 for count in rings.values())


def valence_holds(text: str) -> bool:
    """Whether rdkit can build the molecules, which checks valences, aromatic rings and the whole syntax."""
    from rdkit import Chem, RDLogger

    RDLogger.DisableLog("rdApp.*")
    molecules = [each for side in text.split(">") for each in side.split(".") if each]
    return all(Chem.MolFromSmiles(each) is not None for each in molecules)
