"""Two hundred broken checkpoints: each loads, or is refused with one clear sentence. Nothing else may happen."""

from __future__ import annotations

import json
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tacg
from tacg.models.tiny import SHAPES, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

ABSURD: list[Any] = [
    None,
    -1,
    0,
    1,
    3,
    7,
    1 << 22,
    10**9,
    2**63,
    10**400,
    -0.5,
    1e400,
    float("nan"),
    "8",
    "",
    True,
    False,
    [],
    [1],
    {},
    "ж" * 300,
    "x" * 100_000,
    [[0] * 9999] * 9,
    {"rope_type": {"a": [{}]}},
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("sound")
    return {family: write_checkpoint(home / family, family=family) for family in SHAPES}


def break_config(directory: Path, rng: random.Random) -> str:
    config = json.loads((directory / "config.json").read_text())
    for _ in range(rng.randint(1, 3)):
        config[rng.choice(list(config))] = rng.choice(ABSURD)
    if rng.random() < 0.2:
        config.pop(rng.choice(list(config)))
    (directory / "config.json").write_text(json.dumps(config))
    return f"config {config}"


def break_weights(directory: Path, rng: random.Random) -> str:
    file = directory / "model.safetensors"
    weights = load_file(file)
    name = rng.choice(list(weights))
    how = rng.choice(["shape", "type", "missing", "extra", "renamed", "empty", "expert"])
    tensor = weights.pop(name)
    if how == "shape":
        weights[name] = torch.zeros([*tensor.shape, 2]) if rng.random() < 0.5 else tensor.flatten()[:-1].clone()
    elif how == "type":
        weights[name] = tensor.to(rng.choice([torch.int8, torch.int64, torch.bool, torch.float16, torch.float64]))
    elif how == "extra":
        weights |= {name: tensor, "model.layers.0.surprise.weight": torch.ones(3)}
    elif how == "renamed":
        weights[name[::-1]] = tensor
    elif how == "empty":
        weights[name] = tensor[:0].clone()
    elif how == "expert":
        weights |= {name: tensor, "model.layers.1.mlp.experts.999.up_proj.weight": torch.ones(32, 64)}
    save_file(weights, file)
    return f"{how} {name}"


def break_bytes(directory: Path, rng: random.Random) -> str:
    file = directory / rng.choice(["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
    data = bytearray(file.read_bytes())
    how = rng.choice(["cut", "flip", "zero", "nothing", "index"])
    if how == "cut":
        data = data[: rng.randrange(len(data))]
    elif how == "flip":
        for _ in range(8):
            data[rng.randrange(min(len(data), 400))] ^= 1 << rng.randrange(8)
    elif how == "zero":
        data[:8] = bytes(8)
    elif how == "nothing":
        data = bytearray()
    else:
        listed = rng.choice([{"x": "../../etc/passwd"}, {"x": 3}, [], {"x": "model.safetensors"}, "no"])
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    file.write_bytes(bytes(data))
    return f"{how} {file.name}"


@pytest.mark.parametrize("seed", range(200))
def test_a_broken_checkpoint_is_refused_in_one_sentence(sound: dict[str, Path], tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    family = rng.choice(list(SHAPES))
    directory = tmp_path / "broken"
    shutil.copytree(sound[family], directory)
    what = rng.choice([break_config, break_config, break_weights, break_bytes])(directory, rng)
    said = ""
    try:
        llm = tacg.load(directory)
        llm.generate([7, 8, 9], gen_length=4, block_length=llm.model.spec.causal_block or 4)
    except tacg.TacgError as error:
        said = str(error)
    assert not said or 15 < len(said) < 1500, what
