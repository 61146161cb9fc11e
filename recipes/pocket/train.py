"""Train pocket: a LLaDA of 2.3 M parameters, on a laptop's CPU. Interrupt it at any time; run it again to continue.

    python recipes/pocket/train.py --run DIR --steps 12600
    torchrun --standalone --nproc-per-node 2 -- recipes/pocket/train.py --run DIR --steps 12600

The second line uses two processes, each with half of every batch: with two cores, faster than two threads.
DIR gets tokenizer files, `checkpoint.safetensors` (weights, their EMA, optimiser state, step), `loss.jsonl`, and
`ages/` with the model at five stages of training.
Everything is derived from the step number, so a resumed run equals one that was never interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fast
import torch
from data import MASK, MIXTURE, OPENING, Batch, build_tokenizer, shard
from muon import Muon
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from tacg.models.llada import Llada, LladaConfig
from tacg.tasks.free_code import NAMES

if TYPE_CHECKING:
    from data import Mixture

SHAPE: dict[str, Any] = {
    "model_type": "llada",
    "d_model": 160,
    "n_layers": 7,
    "n_heads": 5,
    "n_kv_heads": 5,
    "mlp_hidden_size": 416,
    "max_sequence_length": 512,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "weight_tying": False,
}
PIECE = 2048  # tokens that are computed at a time


@dataclass(frozen=True)
class Plan:
    """How to train. The learning rate rises, stays for a sixth of the steps, and falls to half, then to zero.

    opening_shards  how many shards have only easy problems
    """

    steps: int
    tokens_per_batch: int = 6144
    shard_samples: int = 4096
    opening_shards: int = 10
    warmup: int = 200
    muon_lr: float = 0.02
    adam_lr: float = 0.003
    ema: float = 0.998
    weighting: str = "eq1"
    save_every: int = 250
    ages: tuple[float, ...] = (1 / 15, 1 / 8, 1 / 4, 11 / 24, 1.0)  # shares of the steps after which it is kept
    seed: int = 0

    @property
    def kept(self) -> set[int]:
        """The steps after which a copy of the model is saved."""
        return {max(1, round(self.steps * age)) for age in self.ages}

    def rate(self, step: int) -> float:
        """The learning rate at a step, as a share of its peak."""
        left = (self.steps - step) / self.steps
        return min(1.0, (step + 1) / self.warmup, 0.5 + 1.5 * (left - 0.5) if left > 0.5 else left)

    def mixture(self, number: int) -> Mixture:
        """What a shard consists of."""
        return OPENING if number < self.opening_shards else MIXTURE


class Parts:
    """Which pieces of a batch are this process's, out of how many processes, as torchrun says; without it, all."""

    def __init__(self) -> None:
        self.mine, self.all = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.first = self.mine == 0

    def wait(self) -> None:
        """Until all processes are here."""
        if self.all > 1:
            distributed.barrier()

    def pieces(self, lengths: list[int]) -> list[range]:
        """Neighbouring rows of about PIECE tokens each: few enough that what is computed stays in the cache."""
        ends = list(accumulate(lengths))
        count = -(-ends[-1] // (PIECE * self.all)) * self.all
        cuts = [bisect_left(ends, ends[-1] * edge / count) for edge in range(count)] + [len(lengths)]
        pieces = [range(*edge) for edge in pairwise(cuts)]
        return [each for each in pieces[self.mine * count // self.all : (self.mine + 1) * count // self.all] if each]

    def summed(self, loss: Tensor, gradients: list[Tensor]) -> Tensor:
        """The loss of all processes; the gradients become the sums over them."""
        if self.all == 1:
            return loss
        flat = torch.cat([loss.view(1), *(each.view(-1) for each in gradients)])
        distributed.all_reduce(flat)
        total, *sums = flat.split([1, *(each.numel() for each in gradients)])
        for gradient, each in zip(gradients, sums, strict=True):
            gradient.copy_(each.view_as(gradient))
        return total[0]


class Trainer:
    """The model, its EMA, its optimisers, and where they are kept."""

    def __init__(self, run: Path, plan: Plan, shape: dict[str, Any]) -> None:
        self.run, self.plan, self.step, self.parts = run, plan, 0, Parts()
        self._cached: tuple[int, list[Batch]] | None = None
        run.mkdir(parents=True, exist_ok=True)
        if self.parts.first and not (run / "tokenizer_config.json").exists():
            build_tokenizer(run)
        self.parts.wait()  # before the others read it
        self.tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
        self.mask_id: int = self.tokenizer.token_to_id(MASK)
        size = -(-self.tokenizer.get_vocab_size() // 32) * 32
        config = shape | {"vocab_size": self.tokenizer.get_vocab_size(), "embedding_size": size}
        config |= {"mask_token_id": self.mask_id, "eos_token_id": 0}
        if self.parts.first:
            (run / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        torch.manual_seed(plan.seed)
        self.model = Llada(LladaConfig.read(config))
        initialise(self.model, self.tokenizer)
        self.ema = {name: value.clone() for name, value in self.model.state_dict().items()}
        hidden = [p for name, p in self.model.named_parameters() if p.dim() == 2 and ".blocks." in name]
        others = [p for p in self.model.parameters() if not any(p is h for h in hidden)]
        self.optimisers: dict[str, torch.optim.Optimizer] = {
            "muon": Muon(hidden, lr=plan.muon_lr, weight_decay=0.01),
            "adam": torch.optim.AdamW(others, lr=plan.adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
        }
        self.peaks = {"muon": plan.muon_lr, "adam": plan.adam_lr}
        self._load()

    def train(self) -> None:
        """Train to the last step, saving from time to time."""
        began, tokens, losses = time.monotonic(), 0, []
        while self.step < self.plan.steps:
            for batch in self._remaining():
                losses.append(self._update(batch))
                tokens += len(batch.tokens)
                self.step += 1
                if self.step % 50 == 0 or self.step == self.plan.steps:
                    if self.parts.first:
                        self._log(sum(losses) / len(losses), tokens / (time.monotonic() - began))
                    began, tokens, losses = time.monotonic(), 0, []
                if self.step in self.plan.kept and self.parts.first:
                    self._keep()
                if self.parts.first and (self.step % self.plan.save_every == 0 or self.step == self.plan.steps):
                    self.save()
                if self.step == self.plan.steps:
                    break

    def _remaining(self) -> list[Batch]:
        """The rest of the current shard. Shards differ in length, so the walk to it starts at the first."""
        number, start, stop = self._shard_of_step()
        batches = self._batches(number)
        if len(batches) != stop - start:
            raise SystemExit(
                f"{self.run} was begun with other data: shard {number} had {stop - start} batches, not {len(batches)}."
            )
        return batches[self.step - start :]

    def _shard_of_step(self) -> tuple[int, int, int]:
        """Number of the current shard, its first step, and the one after its last."""
        ends: list[int] = json.loads(self._ledger.read_text()) if self._ledger.exists() else []
        for number, end in enumerate(ends):
            if self.step < end:
                return number, ends[number - 1] if number else 0, end
        number, start = len(ends), ends[-1] if ends else 0
        stop = start + len(self._batches(number))
        if self.parts.first:
            new = self._ledger.with_suffix(".new")
            new.write_text(json.dumps([*ends, stop]))
            os.replace(new, self._ledger)  # whole, for the other processes that read it
        return number, start, stop

    def _batches(self, number: int) -> list[Batch]:
        plan = self.plan
        if self._cached is None or self._cached[0] != number:
            made = shard(self.tokenizer, number, plan.shard_samples, plan.tokens_per_batch, plan.mixture(number))
            self._cached = (number, made)
        return self._cached[1]

    @property
    def _ledger(self) -> Path:
        return self.run / "shards.json"

    def _update(self, batch: Batch) -> float:
        for name, optimiser in self.optimisers.items():
            for group in optimiser.param_groups:
                group["lr"] = self.peaks[name] * self.plan.rate(self.step)
        loss = self.backward(batch)
        gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
        loss = self.parts.summed(loss, gradients)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers.values():
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        keep = min(self.plan.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                self.ema[name].lerp_(value, 1 - keep)
        return float(loss)

    def backward(self, batch: Batch) -> Tensor:
        """Add this process's part of the gradients; returns its part of the objective."""
        hidden, weight = masked(batch, self.plan, self.step)
        ends, total = [0, *accumulate(batch.lengths)], torch.zeros(())
        for rows in self.parts.pieces(batch.lengths):
            piece = slice(ends[rows.start], ends[rows.stop])
            tokens, select = batch.tokens[piece], hidden[piece].nonzero().squeeze(1)
            noisy = tokens.masked_fill(hidden[piece], self.mask_id)
            scores = fast.logits(self.model, noisy, batch.lengths[rows.start : rows.stop], select)
            loss = F.cross_entropy(scores, tokens[select], reduction="none") @ weight[piece][select]
            loss.backward()
            total += loss.detach()
        return total

    def _log(self, loss: float, speed: float) -> None:
        row = {"step": self.step, "loss": round(loss, 5), "rate": round(self.plan.rate(self.step), 4)}
        row |= {"tokens_per_second": round(speed), "weighting": self.plan.weighting}
        with (self.run / "loss.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)

    def _keep(self) -> None:
        """Save a copy of the averaged weights in bfloat16: the model at this stage."""
        weights = {name: value.to(torch.bfloat16) for name, value in self.ema.items()}
        (self.run / "ages").mkdir(exist_ok=True)
        path = self.run / "ages" / f"{self.step:06d}.safetensors"
        save_file(weights, f"{path}.new", {"format": "pt", "step": str(self.step)})
        os.replace(f"{path}.new", path)

    def save(self) -> None:
        """Write everything to one file, which replaces the old one only when it is complete."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"ema/{name}": value for name, value in self.ema.items()}
        for name, optimiser in self.optimisers.items():
            for number, state in optimiser.state_dict()["state"].items():
                tensors |= {f"{name}/{number}/{key}": torch.as_tensor(value) for key, value in state.items()}
        path = self.run / "checkpoint.safetensors"
        save_file({key: value.contiguous() for key, value in tensors.items()}, f"{path}.new", {"step": str(self.step)})
        os.replace(f"{path}.new", path)

    def _load(self) -> None:
        path = self.run / "checkpoint.safetensors"
        if not path.exists():
            return
        parts: dict[str, dict[str, Tensor]] = {name: {} for name in ("model", "ema", *self.optimisers)}
        with safe_open(path, framework="pt") as file:
            self.step = int(file.metadata()["step"])
            for key in file.keys():  # noqa: SIM118 (not a mapping)
                part, _, name = key.partition("/")
                parts[part][name] = file.get_tensor(key)
        self.model.load_state_dict(parts["model"])
        self.ema = parts["ema"]
        for name, optimiser in self.optimisers.items():
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in parts[name].items():
                number, _, field = key.partition("/")
                state.setdefault(int(number), {})[field] = value
            optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
        print(f"resumed at step {self.step}", flush=True)


def initialise(model: Llada, tokenizer: Tokenizer) -> None:
    """Normal weights; layers that write into the residual stream start small.

    Embeddings start at size one. At 0.02, a common choice, the blocks' first outputs are much larger, and no head can
    tell tokens apart; such a run had not learned to copy a number after 1,750 steps (docs/log.md).
    """
    for name, value in model.named_parameters():
        if value.dim() == 2:
            small = (2 * model.config.n_layers) ** -0.5 if name.endswith(("attn_out.weight", "ff_out.weight")) else 1.0
            nn.init.normal_(value, std=1.0 if "wte" in name else small * value.shape[1] ** -0.5)
    parts: Any = model.model["transformer"]
    teach_words(tokenizer, parts["wte"].weight, parts["ff_out"].weight)


@torch.no_grad()
def teach_words(tokenizer: Tokenizer, table: Tensor, head: Tensor) -> None:
    """What is alike starts alike. Large models learn this from much text; here it would take most of the training.

    A word starts the same with and without a space before it. Half of a number is its position on circles of several
    sizes, so that sums are rotations. A list's name is partly the number of its step, and partly its series.
    """
    ids = tokenizer.get_vocab()
    for word, token in ids.items():
        if word.startswith("Ġ") and word[1:] in ids:
            for rows in (table, head):
                rows[token] = rows[ids[word[1:]]]
    waves = torch.tensor([2.0, 5.0, 10.0, 20.0, 33.0, 50.0, 100.0, 200.0])
    angle = 2 * torch.pi * torch.arange(100.0)[:, None] / waves
    features = torch.cat([angle.cos(), angle.sin()], dim=1) / len(waves) ** 0.5  # [100, 16], each of length one
    frame = torch.linalg.qr(torch.randn(table.shape[1], features.shape[1])).Q  # [D, 16], orthonormal
    placed, series = features @ frame.T, F.normalize(torch.randn(len(NAMES), table.shape[1]))
    meant = {str(number): placed[number] for number in range(100)}
    for names, shared in zip(NAMES, series, strict=True):
        meant |= {name: placed[number] + shared * 0.5**0.5 for number, name in enumerate(names.split(), 1)}
    for word, meaning in meant.items():
        for token in {word, f"Ġ{word}"} & ids.keys():
            for rows, size in ((table, table.shape[1] ** 0.5), (head, 1.0)):
                rows[ids[token]] = F.normalize(rows[ids[token]] + size * meaning, dim=0) * size


def masked(batch: Batch, plan: Plan, step: int) -> tuple[Tensor, Tensor]:
    """What the masked-diffusion objective hides, bool [N], and how much each hidden token's loss weighs, [N].

    Each row draws a noise level t and masks its answer with probability t. `eq1` is the paper's Eq. 1, with answer
    length over masked count instead of 1/t, which has the same mean and less noise; `plain` is the mean over all masked
    tokens of the batch, which weighs noisy rows more.
    """
    generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + step)
    rows = len(batch.lengths)
    level = (torch.rand((), generator=generator) + torch.arange(rows) / rows) % 1.0  # spread evenly over the batch
    level = level[torch.randperm(rows, generator=generator)]
    row = torch.repeat_interleave(torch.arange(rows), torch.tensor(batch.lengths))
    hidden = batch.answer & (torch.rand(len(row), generator=generator) < level[row])
    count = torch.zeros(rows).index_add_(0, row, hidden.float())
    return hidden, 1 / (count.sum().expand(len(row)) if plan.weighting == "plain" else count[row] * rows)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="directory of the run; run it again to continue")
    parser.add_argument("--steps", type=int, default=12600)
    parser.add_argument("--weighting", choices=["plain", "eq1"], default="eq1")
    parser.add_argument("--save-every", type=int, default=250)
    parser.add_argument("--tokens-per-batch", type=int, default=6144)
    parser.add_argument("--shard-samples", type=int, default=4096)
    parser.add_argument("--opening-shards", type=int, default=10, help="shards of easy problems at the start")
    parser.add_argument("--shape", type=json.loads, default={}, help="JSON that overrides fields of config.json")
    asked = parser.parse_args()
    plan = Plan(
        steps=asked.steps,
        weighting=asked.weighting,
        save_every=asked.save_every,
        tokens_per_batch=asked.tokens_per_batch,
        shard_samples=asked.shard_samples,
        opening_shards=asked.opening_shards,
    )
    if Parts().all > 1:
        distributed.init_process_group("gloo")
    Trainer(asked.run, plan, SHAPE | asked.shape).train()
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
