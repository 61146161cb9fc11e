"""What loading costs: time, and peak resident memory relative to the size of a synthetic bfloat16 checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from tacg.models.loading import FAMILIES
from tacg.models.tiny import write_checkpoint
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tacg.records.rows import ResultRow

# Shapes per gigabyte; the number of layers is multiplied.
SHAPES: dict[str, dict[str, Any]] = {
    "llada": {"d_model": 2048, "n_heads": 16, "n_kv_heads": 16, "mlp_hidden_size": 6144, "n_layers": 9},
    "llada2": {
        "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
        "intermediate_size": 2048, "moe_intermediate_size": 256, "num_experts": 96, "num_experts_per_tok": 8,
        "n_group": 8, "topk_group": 4, "num_hidden_layers": 7,
    },
}  # fmt: skip
# Runs in a new process, so that only loading is measured, and loads a tiny model first: code that is imported, and
# compiled if it is new, takes memory, too. Every page of the weights is touched.
CHILD = """
import json, sys, time, torch, tacg, tacg.llm
def memory(field):
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith(field)).split()[1])
tacg.load("tiny", quantize=sys.argv[2] or None)
before, began = memory("VmRSS"), time.perf_counter()
llm = tacg.load(sys.argv[1], dtype="bfloat16", quantize=sys.argv[2] or None)
seconds = time.perf_counter() - began
for weight in llm.model.parameters():
    weight.flatten()[::512].float().sum()
kept = sum(weight.nbytes for weight in llm.model.parameters())
print(json.dumps({"peak": memory("VmHWM") - before, "kept": kept, "seconds": seconds}))
"""


def measure(gigabytes: float, families: Sequence[str] = (*SHAPES,), quantize: str | None = None) -> Iterator[ResultRow]:
    """One row per family."""
    for family in families:
        with tempfile.TemporaryDirectory(prefix="tacg-load-") as scratch:
            size = _write(Path(scratch), family, gigabytes)
            command = [sys.executable, "-c", CHILD, scratch, quantize or ""]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        yield {
            "bench": "load", "family": family, "bytes": size, "peak_bytes": found["peak"],
            "quantize": quantize or "none", "kept_bytes": found["kept"],
            "peak_over_size": found["peak"] / size, "load_seconds": found["seconds"], **surroundings(),
        }  # fmt: skip


def _write(directory: Path, family: str, gigabytes: float) -> int:
    """Write a checkpoint in two shards; returns its size in bytes."""
    layers = "n_layers" if family == "llada" else "num_hidden_layers"
    shape = SHAPES[family] | {layers: max(2, round(SHAPES[family][layers] * gigabytes))}
    write_checkpoint(directory, family=family)
    os.unlink(directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text(encoding="utf-8")) | shape
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with torch.device("meta"):
        model = FAMILIES[config["model_type"]](config)
    shards: list[dict[str, torch.Tensor]] = [{}, {}]
    for number, (name, tensor) in enumerate(model.state_dict().items()):
        stem, _, part = name.rpartition(".")
        apart = tensor.dim() == 3
        names = [f"{stem}.{expert}.{part}.weight" for expert in range(len(tensor))] if apart else [name]
        shards[number % 2] |= {each: torch.full(tensor.shape[apart:], 0.01, dtype=torch.bfloat16) for each in names}
    for number, shard in enumerate(shards):
        save_file(shard, directory / f"model-{number}.safetensors")
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """All rows."""
    lines = [
        (row["family"], f"{row['bytes'] / 1e9:.2f}", f"{row['peak_over_size']:.3f}", f"{row['load_seconds']:.1f}")
        for row in rows
    ]
    return [Table("", ("family", "checkpoint, GB", "peak memory over size", "s"), tuple(lines))]
