"""Judges: models from PyPI packages, read without their code and compared with the digests that are written down."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

import tacg
from tacg.models.judges import JUDGES
from tests.cli.test_cli import document
from tests.cli.test_cli import tacg as run

REACTION = "COc1ccccc1O.Clc1ccc(-c2coc(CCCI)n2)cc1>>COc1ccccc1OCCCc1nc(-c2ccc(Cl)cc2)co1"
ANTIBODY = "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK"
TEXTS = {"rxnmapper": REACTION, "rxnfp": REACTION, "antiberty": ANTIBODY}


def installed(name: str) -> None:
    if JUDGES[name].installed() is None:
        pytest.skip(f"pip install --no-deps {JUDGES[name].requirement}")


@pytest.mark.parametrize("name", JUDGES)
def test_a_judge_knows_its_domain(name: str) -> None:
    installed(name)
    llm, text = tacg.load(name), TEXTS[name]
    ids = llm.tokenizer.encode(text)
    assert llm.tokenizer.decode(ids) == text
    assert llm.tokenizer.id_of("[UNK]") not in ids
    masked = [llm.model.spec.mask_id if place % 5 == 2 else token for place, token in enumerate(ids)]
    out = llm.fill(masked, "confidence", block_length=128)
    right = sum(
        commit.token == [*llm.model.spec.before, *ids][out.prompt_tokens + commit.position] for commit in out.commits
    )
    assert right >= 0.9 * len(out.commits)
    assert not {module.partition(".")[0] for module in sys.modules} & {"rxnmapper", "rxnfp", "antiberty"}


@pytest.mark.parametrize("name", ["rxnmapper", "rxnfp", "antiberty"])
def test_logits_are_those_of_transformers(name: str) -> None:
    installed(name)
    transformers = pytest.importorskip("transformers")
    judge = JUDGES[name]
    kind = "Albert" if name == "rxnmapper" else "Bert"
    config, weights, _ = judge.places()
    shape = json.loads(config.read_text()) | judge.config
    model = getattr(transformers, f"{kind}ForMaskedLM")(getattr(transformers, f"{kind}Config")(**shape)).eval()
    loaded = model.load_state_dict(torch.load(weights, weights_only=True, map_location="cpu"), strict=False)
    assert {*loaded.missing_keys} <= {"cls.predictions.decoder.bias"}, "which is tied"
    llm = tacg.load(name)
    ids = torch.tensor([[*llm.model.spec.before, *llm.tokenizer.encode(TEXTS[name]), *llm.model.spec.after]])
    with torch.no_grad():
        theirs = model(input_ids=ids).logits
    assert float((llm.logits(ids) - theirs).abs().max()) <= 1e-4, "logits are in the tens"


class Package:
    """An installed package with a judge's files."""

    version = "9.9"

    def __init__(self, home: Path) -> None:
        self.home = home

    def locate_file(self, path: str) -> Path:
        return self.home / path


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `planted` that carries a tiny BERT, and a judge of that name."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=8, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = transformers.BertForMaskedLM(config)
    (tmp_path / "config.json").write_text(json.dumps({**config.to_dict(), "model_type": None}))
    torch.save(dict(model.state_dict()), tmp_path / "weights.bin")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nA\nC\nBr")
    files: Any = tuple(
        (name, hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
        for name in ("config.json", "weights.bin", "vocab.txt")
    )
    judge = replace(JUDGES["rxnfp"], name="planted", package="planted", files=files)
    monkeypatch.setitem(JUDGES, "planted", judge)
    monkeypatch.setattr(metadata, "distribution", lambda name: Package(tmp_path))
    return tmp_path


def test_files_are_read_where_pip_put_them(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    made = JUDGES["planted"].write(tmp_path_factory.mktemp("made"))
    llm = tacg.load(made)
    assert llm.tokenizer.encode("ABrC") == [5, 7, 6]
    assert llm.fill("A⟨2⟩Br").text.startswith("A")


@pytest.mark.parametrize("name", ["config.json", "weights.bin", "vocab.txt"])
def test_other_files_are_refused(planted: Path, name: str) -> None:
    with (planted / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(tacg.TacgError, match=f"{name} is not the file that 'planted' was tested with: its SHA-256"):
        tacg.load("planted")
    (planted / name).unlink()
    with pytest.raises(tacg.TacgError, match="The judge 'planted' is not installed: `tacg judges planted --install`"):
        tacg.load("planted")


def test_the_command_line_lists_them() -> None:
    facts = document("judges")
    assert facts.keys() == JUDGES.keys()
    for name, each in facts.items():
        assert each["sha256"] == JUDGES[name].digest  # type: ignore[index]
        assert each["install"].startswith("pip install --no-deps ")  # type: ignore[index]
    assert run("judges", "rxnmapper").stdout.count("\n") == len(facts["rxnmapper"])  # type: ignore[arg-type]
    for words, told in (
        (("judges", "rxnmaper"), "Did you mean 'rxnmapper'?"),
        (("judges", "--install"), "needs the name"),
    ):
        done = run(*words)
        assert (done.returncode, told in done.stderr) == (2, True)


def test_importing_the_loader_finds_no_packages() -> None:
    """Judges are looked for when one is asked for."""
    code = "import tacg.models.loading, sys; print({'rxnmapper', 'rxnfp', 'antiberty'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_installing_is_pip_without_dependencies(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from tacg.cli import judges

    called: list[list[str]] = []

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        called.append(command)
        return subprocess.CompletedProcess(command, returncode=len(called) - 1)

    monkeypatch.setattr(judges.subprocess, "run", pip)
    judges.main("rxnfp", install=True, as_json=True)
    assert called == [[sys.executable, "-m", "pip", "install", "--no-deps", "rxnfp==0.1.0"]]
    assert json.loads(capsys.readouterr().out.splitlines()[-1]).keys() == {"rxnfp"}
    with pytest.raises(tacg.TacgError, match=r"pip could not install rxnfp==0.1.0"):
        judges.main("rxnfp", install=True)
