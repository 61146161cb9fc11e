"""Turn a training run into the checkpoint that ships: the averaged weights in bfloat16, config and tokenizer.

python recipes/pocket/export.py --run DIR --out src/tacg/models/pocket
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

LIMIT = 12 * 10**6  # bytes; a package that people install in passing


def export(run: Path, out: Path) -> int:
    """Write the checkpoint; returns the size of its weights in bytes."""
    out.mkdir(parents=True, exist_ok=True)
    with safe_open(run / "checkpoint.safetensors", framework="pt") as file:
        step = file.metadata()["step"]
        names = [key for key in file.keys() if key.startswith("ema/")]  # noqa: SIM118 (not a mapping)
        weights = {key.removeprefix("ema/"): file.get_tensor(key).to(torch.bfloat16) for key in names}
    save_file(weights, out / "model.safetensors", {"format": "pt", "step": step})
    (out / "model.safetensors").chmod(0o644)  # it is written for its owner only
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(run / name, out / name)
    curve = {json.loads(line)["step"]: line for line in (run / "loss.jsonl").read_text("utf-8").splitlines()}
    (out / "loss.jsonl").write_text(
        "".join(f"{line}\n" for line in curve.values()), "utf-8"
    )  # a resumed run repeats steps
    size = (out / "model.safetensors").stat().st_size
    if size > LIMIT:
        raise SystemExit(f"The weights take {size} bytes, more than the {LIMIT} that the package may carry.")
    print(f"exported step {step}: {size / 1e6:.2f} MB to {out}")
    return size


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    export(asked.run, asked.out)
