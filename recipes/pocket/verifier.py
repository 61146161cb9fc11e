"""Train a small autoregressive model with pocket's tokenizer, in minutes: what `apd` checks pocket's drafts against.

    python recipes/pocket/verifier.py --model src/tacg/models/pocket --out runs/verifier --steps 1500

The result is a Qwen2 checkpoint below 1 MB: `tacg.load("pocket", verifier="runs/verifier")`. It is not shipped: it
belongs to one tokenizer, and is made faster than a package with it is downloaded.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from data import Mixture, shard
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional as F

from tacg.models.base import whole
from tacg.models.qwen2 import Qwen2

SHAPE: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
# What the pocket inside the package knows.
MIXTURE: Mixture = [("pocket-math", {}, 0.4), ("pocket-code", {}, 0.3), ("pocket-sudoku", {}, 0.3)]


def train(model: Path, out: Path, steps: int, *, samples: int, tokens: int, shape: dict[str, Any]) -> float:
    """Write the checkpoint; returns the last loss, a mean over answer tokens."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(model / name, out / name)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    size = -(-tokenizer.get_vocab_size() // 32) * 32
    config = shape | {"vocab_size": size, "eos_token_id": 0}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    network = Qwen2.read(config)
    _initialise(network)
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.003, betas=(0.9, 0.95), weight_decay=0.01)
    step, number, loss, began = 0, 0, float("nan"), time.monotonic()
    while step < steps:
        for batch in shard(tokenizer, number, samples, tokens, 0, MIXTURE)[: steps - step]:
            for group in optimiser.param_groups:
                group["lr"] = 0.003 * min(1.0, (step + 1) / 50, (steps - step) / max(1, steps // 2))
            select = batch.answer.nonzero().squeeze(1)
            logits = network(batch.tokens, whole(batch.lengths), select)
            found = F.cross_entropy(logits, batch.tokens[select])
            found.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            loss, step = float(found.detach()), step + 1
            if step % 50 == 0 or step == steps:
                print({"step": step, "loss": round(loss, 4), "seconds": round(time.monotonic() - began)}, flush=True)
        number += 1
    weights = {name: value.to(torch.bfloat16) for name, value in network.state_dict().items()}
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    return loss


def _initialise(network: Qwen2) -> None:
    """Normal weights, no biases; what writes into the residual stream starts small."""
    for name, value in network.named_parameters():
        if value.dim() == 2:
            small = (2 * network.config.layers) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            nn.init.normal_(value, std=small * value.shape[1] ** -0.5)
        elif name.endswith("bias"):
            nn.init.zeros_(value)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint whose tokenizer is shared")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--shard-samples", type=int, default=2048)
    parser.add_argument("--tokens-per-batch", type=int, default=4096)
    parser.add_argument("--shape", type=json.loads, default={}, help="JSON that overrides fields of config.json")
    asked = parser.parse_args()
    train(
        asked.model, asked.out, asked.steps, samples=asked.shard_samples, tokens=asked.tokens_per_batch,
        shape=SHAPE | asked.shape,
    )  # fmt: skip


if __name__ == "__main__":
    main()
