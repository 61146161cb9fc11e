"""From torch's pickles to safetensors: the same tensors, and nothing in a file is ever run."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file

import tacg
from tacg.models.convert import convert
from tests.cli.test_cli import document

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def pickled(checkpoint: Path) -> Path:
    """A checkpoint as torch saves one."""
    weights = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    torch.save(weights, checkpoint / "pytorch_model.bin")
    return checkpoint


def test_a_converted_checkpoint_is_the_same(pickled: Path) -> None:
    weights = torch.load(pickled / "pytorch_model.bin", weights_only=True)
    torch.save({"lr": 1.0}, pickled / "training_args.bin")
    with pytest.raises(tacg.TacgError, match="is a pickle, which can run code: `tacg convert"):
        tacg.load(pickled)
    told = document("convert", str(pickled))
    made = load_file(pickled / "model.safetensors")
    assert told["tensors"] == len(weights) == len(made)
    assert all(torch.equal(made[name], tensor) for name, tensor in weights.items())
    tacg.load(pickled)
    with pytest.raises(tacg.TacgError, match="exists already; pass --force"):
        convert(pickled)
    assert convert(pickled, force=True) == (pickled / "model.safetensors", len(weights))


def test_shards_and_shared_tensors(tmp_path: Path) -> None:
    table = torch.randn(8, 6)
    shards = {"a.bin": {"table": table, "again": table, "turned": table.t()}, "b.bin": {"rest": torch.randn(3)}}
    for name, tensors in shards.items():
        torch.save(tensors, tmp_path / name)
    listed = {name: file for file, tensors in shards.items() for name in tensors}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": listed}))
    file, count = convert(tmp_path)
    made = load_file(file)
    assert count == 4
    assert torch.equal(made["again"], table)
    assert torch.equal(made["turned"], table.t())
    (tmp_path / "b.bin").unlink()
    with pytest.raises(tacg.TacgError, match=r"b.bin is listed in pytorch_model.bin.index.json but does not exist"):
        convert(tmp_path, force=True)


class Trap:
    """What a pickle can do when it is opened carelessly."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.file.write_text, ("sprung",)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda file, trap: torch.save({"x": trap}, file), "It may contain code, which is never run here"),
        (
            lambda file, trap: file.write_bytes(pickle.dumps({"x": trap})),
            "It may contain code, which is never run here",
        ),
        (lambda file, trap: file.write_bytes(file.read_bytes()[:-99]), "contains more than tensors"),
        (lambda file, trap: torch.save({"x": 1}, file), "but 'x' is a int"),
        (lambda file, trap: torch.save([torch.ones(1)], file), "must hold tensors by name, got list"),
        (lambda file, trap: file.unlink(), r"has no \*.bin, \*.pt, \*.pth to convert"),
        (lambda file, trap: torch.save({}, file.rename(file.with_name("a.pt")).with_name("b.pt")), "has 2 files that"),
    ],
)
def test_everything_else_is_refused(pickled: Path, spoil: Callable[[Path, Trap], object], told: str) -> None:
    trap = Trap(pickled / "sprung")
    spoil(pickled / "pytorch_model.bin", trap)
    with pytest.raises(tacg.TacgError, match=told):
        convert(pickled)
    assert not trap.file.exists()
    assert not (pickled / "model.safetensors").exists()
