"""Judges: masked language models trained by others, from PyPI packages. `tacg.load("rxnmapper")`.

A package is installed without its dependencies, and its code is never imported: three files are read, and each must
match a digest recorded here. Their weights are pickles; `tacg.models.convert` reads only the tensors.
"""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError
from tacg.files import read_bytes
from tacg.models.convert import read_pickled, save_tensors
from tacg.text import pattern_tokenizer, read_json, read_vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping

SMILES = r"\[[^\]]+\]|%\(\d{3}\)|%\d{2}|Br|Cl|>>|."  # one token per atom, bond, bracket, ring closure or arrow
LETTERS = "."


@dataclass(frozen=True, slots=True)
class JudgeModel:
    """A model inside a package.

    package, version  what pip installs; other versions work if they contain the same files
    files             config, weights and vocabulary: where they are in it, and their SHA-256
    size              bytes of the weights
    pattern           regular expression of a token
    task              the task that fits this model, if there is one
    config            fields that its config.json lacks
    """

    name: str
    package: str
    version: str
    about: str
    domain: str
    licence: str
    home: str
    size: int
    files: tuple[tuple[str, str], tuple[str, str], tuple[str, str]]
    pattern: str
    task: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of its weights."""
        return self.files[1][1]

    @property
    def requirement(self) -> str:
        """The requirement for pip."""
        return f"{self.package}=={self.version}"

    def installed(self) -> str | None:
        """The installed version of its package; None if it is not installed or lacks the files."""
        try:
            package = metadata.distribution(self.package)
        except metadata.PackageNotFoundError:
            return None
        return (
            package.version if all(Path(str(package.locate_file(path))).is_file() for path, _ in self.files) else None
        )

    def places(self) -> list[Path]:
        """Where its files are; raises unless their digests match."""
        if self.installed() is None:
            raise TacgError(
                f"The judge {self.name!r} is not installed: `tacg judges {self.name} --install`, "
                f"or pip install --no-deps {self.requirement}."
            )
        package = metadata.distribution(self.package)
        found = []
        for path, wanted in self.files:
            place = Path(str(package.locate_file(path)))
            got = hashlib.sha256(read_bytes(place, "file of a judge")).hexdigest()
            if got != wanted:
                raise TacgError(
                    f"{place} is not the file that {self.name!r} was tested with: its SHA-256 must be {wanted}, "
                    f"got {got}. Install it again: pip install --force-reinstall --no-deps {self.requirement}."
                )
            found.append(place)
        return found

    def write(self, directory: Path) -> Path:
        """Write its checkpoint in the layout that can be loaded: config.json, model.safetensors, tokenizer.json."""
        config, weights, vocabulary = self.places()
        told = {**read_json(config), **self.config}
        (directory / "config.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        pattern_tokenizer(read_vocabulary(vocabulary), self.pattern).save(str(directory / "tokenizer.json"))
        save_tensors(read_pickled(weights), directory / "model.safetensors")
        return directory


_RXNMAPPER = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
_RXNFP = "rxnfp/models/transformers/bert_pretrained"
_ANTIBERTY = "antiberty/trained_models"
_REACTION_WORDS = "399868a653e85549ce150af4a1f6cd2776240c6a3d951ced2120565f00f027fd"

JUDGES = {
    judge.name: judge
    for judge in (
        JudgeModel(
            "rxnmapper", "rxnmapper", "0.4.3", "ALBERT of 12 layers by 256 (Schwaller et al., 2021)",
            "chemical reactions (SMILES)", "MIT", "https://github.com/rxn4chemistry/rxnmapper", 3_212_952,
            (
                (f"{_RXNMAPPER}/config.json", "ea0f3144af1d13a5d5928cff01abd8e7c14ab831ff7b6d73a14d4162864a876f"),
                (f"{_RXNMAPPER}/pytorch_model.bin", "8541f3f500dae71abe678d546bd035ca946e2d1c819f6b2cf41a97faedd7e6a2"),
                (f"{_RXNMAPPER}/vocab.txt", _REACTION_WORDS),
            ),
            SMILES, "reactions",
        ),
        JudgeModel(
            "rxnfp", "rxnfp", "0.1.0", "BERT of 12 layers by 256 (Schwaller et al., 2021)",
            "chemical reactions (SMILES)", "MIT", "https://github.com/rxn4chemistry/rxnfp", 27_016_467,
            (
                (f"{_RXNFP}/config.json", "024d89cb6056e146e066ebbcd9d565d6968d53e82953570a8b110b26495d7d4b"),
                (f"{_RXNFP}/pytorch_model.bin", "50a6ed263d33ae759affa82c1e85554cc5ea9f56145f5c7fb39b6c25d4356437"),
                (f"{_RXNFP}/vocab.txt", _REACTION_WORDS),
            ),
            SMILES, "reactions", {"model_type": "bert"},
        ),
        JudgeModel(
            "antiberty", "antiberty", "0.1.3", "BERT of 8 layers by 512 (Ruffolo et al., 2021)",
            "antibodies (amino acids)", "MIT", "https://github.com/jeffreyruffolo/AntiBERTy", 104_174_334,
            (
                (
                    f"{_ANTIBERTY}/AntiBERTy_md_smooth/config.json",
                    "e199c1692b5f0246ebc5522102044d6e900ffc7d56fa5932fdd5b3d56ef487e9",
                ),
                (
                    f"{_ANTIBERTY}/AntiBERTy_md_smooth/pytorch_model.bin",
                    "f1ae33eac8cc8784a7d4be5a600141d2fa7bc7d8d5b3f5324d64a6a63bd0f137",
                ),
                (f"{_ANTIBERTY}/vocab.txt", "6db8c6cd6361eb233005b2dfe665d40d7f1ba78951bdf0fe61fa670ce192419a"),
            ),
            LETTERS, "antibodies",
        ),
    )
}  # fmt: skip


@functools.cache
def judge_checkpoint(name: str) -> Path:
    """The directory of a judge's checkpoint: written on first use, deleted when the process ends."""
    return JUDGES[name].write(Path(_scratch(name).name))


@functools.cache
def _scratch(name: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=f"tacg-{name}-")
