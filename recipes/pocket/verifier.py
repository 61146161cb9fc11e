"""Train a small autoregressive model with pocket's tokenizer, in minutes: what `apd` checks pocket's drafts against.

    python recipes/pocket/verifier.py --model src/tacg/models/pocket --out runs/verifier

The result is a Qwen2 checkpoint below 1 MB: `tacg.load("pocket", verifier="runs/verifier")`. How well it predicts
answers that it has not seen is in its `quality.json`. The package carries one as `models/pocket/verifier`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from data import ALL, ASSISTANT, USER, Mixture, pack, shard, to_row
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional as F
from train import teach_words

from tacg.models.base import whole
from tacg.models.qwen2 import Qwen2
from tacg.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from data import Batch

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
    "tie_word_embeddings": False,
}
# What the pocket inside the package knows; language first, as for pocket itself (data.py).
OPENING: Mixture = [("pocket-math", {}, ALL, 0.6), ("pocket-code", {}, ALL, 0.4)]
MIXTURE: Mixture = [("pocket-math", {}, ALL, 0.4), ("pocket-code", {}, ALL, 0.25), ("pocket-sudoku", {}, ALL, 0.35)]
OPENING_SHARE = 0.25  # of the steps
PEAKS = {torch.optim.Muon: 0.02, torch.optim.AdamW: 0.003}  # learning rates


def train(model: Path, out: Path, steps: int, *, samples: int, tokens: int, shape: dict[str, Any]) -> None:
    """Write the checkpoint and its quality."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(model / name, out / name)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    config = shape | {"vocab_size": -(-tokenizer.get_vocab_size() // 32) * 32, "eos_token_id": 0}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    network = Qwen2.read(config)
    _initialise(network, tokenizer)
    hidden = [value for name, value in network.named_parameters() if value.dim() == 2 and ".layers." in name]
    others = [value for value in network.parameters() if not any(value is each for each in hidden)]
    optimisers = torch.optim.Muon(hidden, weight_decay=0.01), torch.optim.AdamW(others, betas=(0.9, 0.95))
    began = time.monotonic()
    for step, batch in enumerate(_batches(tokenizer, steps, samples, tokens)):
        loss, _ = _predicted(network, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = PEAKS[type(optimiser)] * min(1.0, (step + 1) / 50, (steps - step) / max(1, steps // 2))
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        if (step + 1) % 50 == 0 or step + 1 == steps:
            spent = round(time.monotonic() - began)
            print({"step": step + 1, "loss": round(float(loss.detach()), 4), "seconds": spent}, flush=True)
    weights = {name: value.to(torch.bfloat16) for name, value in network.state_dict().items()}
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    quality = {name: measure(network, tokenizer, name) for name, *_ in MIXTURE}
    (out / "quality.json").write_text(json.dumps(quality, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(quality))


def _batches(tokenizer: Tokenizer, steps: int, samples: int, tokens: int) -> Iterator[Batch]:
    """One for each step, of fresh problems all the time."""
    step, number = 0, 0
    while step < steps:
        made = shard(tokenizer, number, samples, tokens, OPENING if step < OPENING_SHARE * steps else MIXTURE)
        yield from made[: steps - step]
        step, number = step + len(made), number + 1


def _predicted(network: Qwen2, batch: Batch) -> tuple[torch.Tensor, float]:
    """Mean loss of answer tokens given all before them, and the share that is predicted right."""
    select = batch.answer.nonzero().squeeze(1)
    logits = network(batch.tokens, whole(batch.lengths), select)
    right = logits.argmax(dim=1) == batch.tokens[select]
    return F.cross_entropy(logits, batch.tokens[select]), float(right.float().mean())


@torch.no_grad()
def measure(network: Qwen2, tokenizer: Tokenizer, task: str, n: int = 100) -> dict[str, float]:
    """The same on the dev split; of the padding after answers, only the first token counts."""
    rows = []
    for problem in get_task(task).problems("dev", n, 0):
        prompt = tokenizer.encode(f"{USER}{problem.prompt}{ASSISTANT}").ids
        rows.append(to_row(prompt, [*tokenizer.encode(problem.answer).ids, 0]))
    loss, right = _predicted(network, pack(rows))
    return {"loss": round(float(loss), 4), "right": round(right, 4), "n": n}


def _initialise(network: Qwen2, tokenizer: Tokenizer) -> None:
    """As pocket starts: embeddings of size one, the rest by its width, what writes into the residual stream small."""
    for name, value in network.named_parameters():
        if value.dim() == 2:
            small = (2 * network.config.layers) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            nn.init.normal_(value, std=1.0 if "embed" in name else small * value.shape[1] ** -0.5)
        elif name.endswith("bias"):
            nn.init.zeros_(value)
    parts: Any = network.model
    teach_words(tokenizer, parts["embed_tokens"].weight, network.table)


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
