"""Chemical reactions with holes: what masked language models of reactions were trained on, at any share masked."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import re
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from tacg.errors import TacgError, unknown
from tacg.files import read_text
from tacg.knobs import knob
from tacg.tasks.base import Grade, Problem, Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SHIPPED = Path(__file__).parent / "data" / "reactions.txt.gz"
HALVES = ("dev", "test")
TOKEN = re.compile(r"\[[^\]]+\]|%\(\d{3}\)|%\d{2}|Br|Cl|>>|.")
RING = re.compile(r"%\(\d{3}\)|%\d{2}|\d")


@dataclass(frozen=True)
class Reactions(Task):
    """Chemical reactions, parts of them masked; graded on the whole, by tokens and by syntax."""

    masked: float = knob(0.5, "share of the tokens that is masked", low=0.05, high=0.95)
    where: str = knob("random", "which ones: anywhere, or one span", choices=("random", "span"))
    arrow: bool = knob(False, "whether the arrow may be masked, too (rxnfp never learned to write it)")
    check: str = knob(
        "syntax", "what is valid: closed brackets and rings, or also valence", choices=("syntax", "valence")
    )
    data: str | None = knob(None, "file of reactions as SMILES, one per line (none: those that ship)")

    @property
    def name(self) -> str:  # type: ignore[override]
        """With its knobs: a table may have rows of several."""
        share = "" if self.masked == 0.5 else f"-{100 * self.masked:.4g}"
        return f"reactions{share}{'-span' if self.where == 'span' else ''}{'-arrow' if self.arrow else ''}"

    @property
    def decode(self) -> Mapping[str, int]:
        """One block: these models see a text whole."""
        return {"gen_length": 512, "block_length": 512}

    def refuse_unready(self) -> None:
        """Valences are looked up by a chemistry library."""
        if self.check == "valence" and importlib.util.find_spec("rdkit") is None:
            raise TacgError("`check` valence needs the library rdkit: pip install rdkit, or use check=syntax.")

    def problems(self, split: str = "test", n: int | None = None, seed: int = 0) -> Iterator[Problem]:
        """Reactions of one half in an order drawn from the seed, `n` of them or all. A hash decides the half."""
        if split not in HALVES:
            raise unknown(f"split of {self.name}", split, HALVES)
        if n is not None and n < 1:
            raise TacgError(f"`n` must be >= 1, got {n}.")
        mine = [text for text in _reactions(self.data) if HALVES[_digest(text)[0] % 2] == split]
        random.Random(f"reactions/{split}/{seed}").shuffle(mine)
        for text in mine[:n]:
            yield self._problem(text, random.Random(f"{self.name}/{text}/{seed}"))

    def _problem(self, text: str, rng: random.Random) -> Problem:
        tokens = smiles_tokens(text)
        places = [place for place, token in enumerate(tokens) if self.arrow or ">" not in token]
        count = min(max(1, round(self.masked * len(tokens))), len(places))
        first = rng.randrange(len(places) - count + 1)
        holes = {*(places[first : first + count] if self.where == "span" else rng.sample(places, count))}
        prompt = ""
        for hole, run in groupby(range(len(tokens)), key=holes.__contains__):
            places = list(run)
            prompt += f"⟨{len(places)}⟩" if hole else "".join(tokens[place] for place in places)
        name = f"reactions-{_digest(prompt).hex()[:16]}"
        return Problem(name, prompt, text, {"holes": sorted(holes)}, infill=True)

    def grade(self, problem: Problem, answer: str) -> Grade:
        """The whole reaction must be there; the score is the share of masked tokens that are right."""
        wanted, got = smiles_tokens(problem.answer), smiles_tokens(answer)
        holes: Sequence[int] = problem.data["holes"]
        hits = sum(place < len(got) and got[place] == wanted[place] for place in holes)
        valid = well_formed(answer) and (self.check == "syntax" or valence_holds(answer))
        return Grade(answer == problem.answer, hits / len(holes), valid=valid)


def _reactions(data: str | None) -> list[str]:
    """All of them, each once."""
    file = SHIPPED if data is None else Path(data).expanduser()
    lines = read_text(file, "file of reactions", "pass the path of one with data=FILE").split("\n")
    found = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    for line in found:
        if ">" not in line or "⟨" in line:
            raise TacgError(f"{file} must hold a reaction on each line, such as CCO>>CC=O; got {line[:80]!r}.")
    return found


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def smiles_tokens(text: str) -> list[str]:
    """Atoms, bonds, brackets, ring closures and the arrow, as models of reactions cut them."""
    return TOKEN.findall(text)


def well_formed(text: str) -> bool:
    """Whether there is one arrow, no side is empty, brackets close, and every ring that is opened is closed."""
    sides = text.split(">")
    if len(sides) != 3 or not sides[0] or not sides[2]:
        return False
    return all(_closed(molecule) for side in sides for molecule in side.split(".") if side)


def _closed(molecule: str) -> bool:
    """Of one molecule. A branch follows an atom and is not empty, so "C()C", "(C)C" and "C(" are wrong."""
    tokens = smiles_tokens(molecule)
    depth = 0
    for before, token in zip(["(", *tokens], tokens, strict=False):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth < 0 or (before == "(" and token in "()"):
            return False
    rings = Counter(token for token in tokens if RING.fullmatch(token))
    whole = all(token not in ("[", "]") for token in tokens)  # of a bracket atom that does not close
    return bool(tokens) and depth == 0 and whole and all(count % 2 == 0 for count in rings.values())


def valence_holds(text: str) -> bool:
    """Whether rdkit can make molecules of it: valences, aromatic rings, and all its syntax."""
    from rdkit import Chem, RDLogger

    RDLogger.DisableLog("rdApp.*")
    molecules = [each for side in text.split(">") for each in side.split(".") if each]
    return all(Chem.MolFromSmiles(each) is not None for each in molecules)
