"""Turn a training run into checkpoints: the averaged weights in bfloat16, config and tokenizer.

    python recipes/pocket/export.py --run DIR --out MODEL --ages AGES

MODEL gets the newest weights and the loss curve; AGES gets `MODEL-age-1` (the youngest) to `MODEL-age-5`, each a
checkpoint too.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file

if TYPE_CHECKING:
    from torch import Tensor

LIMIT = 5 * 10**6  # maximum bytes of weights: small enough for a package


def export(run: Path, out: Path) -> int:
    """Write the newest weights and the loss curve; returns the size of the weights in bytes."""
    with safe_open(run / "checkpoint.safetensors", framework="pt") as file:
        step = file.metadata()["step"]
        names = [key for key in file.keys() if key.startswith("ema/")]  # noqa: SIM118 (not a mapping)
        weights = {key.removeprefix("ema/"): file.get_tensor(key).to(torch.bfloat16) for key in names}
    size = _write(run, out, weights, step)
    curve = {json.loads(line)["step"]: line for line in (run / "loss.jsonl").read_text("utf-8").splitlines()}
    (out / "loss.jsonl").write_text(
        "".join(f"{line}\n" for line in curve.values()), "utf-8"
    )  # a resumed run repeats steps
    return size


def export_ages(run: Path, out: Path, name: str) -> list[Path]:
    """Write the model at each saved stage of training, the earliest first."""
    made = []
    for number, path in enumerate(sorted((run / "ages").glob("*.safetensors")), 1):
        with safe_open(path, framework="pt") as file:
            step = file.metadata()["step"]
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
        made.append(out / f"{name}-age-{number}")
        _write(run, made[-1], weights, step)
    return made


def _write(run: Path, out: Path, weights: dict[str, Tensor], step: str) -> int:
    """A checkpoint in the Hugging Face layout."""
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / "model.safetensors", {"format": "pt", "step": step})
    (out / "model.safetensors").chmod(0o644)  # temporary files are readable by their owner only
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(run / name, out / name)
    size = (out / "model.safetensors").stat().st_size
    if size > LIMIT:
        raise SystemExit(f"The weights take {size} bytes, more than the limit of {LIMIT}.")
    print(f"exported step {step}: {size / 1e6:.2f} MB to {out}")
    return size


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ages", type=Path, help="directory for the models of earlier stages")
    asked = parser.parse_args()
    export(asked.run, asked.out)
    if asked.ages is not None:
        export_ages(asked.run, asked.ages, asked.out.name)
