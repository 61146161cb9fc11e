"""Random worlds for tests: trajectories of logits that drift, so that streaks, peaks and reversals all happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request
from tacg.models.base import ModelSpec, Span
from tacg.own_loop import refuse_unusable
from tacg.types import CONTRASTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.policies import Policy
    from tacg.scan import Trajectories
    from tacg.types import Needs, Output

MASK, EOS = 1, 0


def trajectory(
    seed: int, steps: int, *shape: int, scale: float = 3.0, drift: float = 0.5, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Logits [steps, *shape]: a random walk; `drift` is the share that is new in every step."""
    generator = torch.Generator().manual_seed(seed)
    fresh = torch.randn(steps, *shape, generator=generator, dtype=torch.float64) * scale
    walk = [fresh[0]]
    for step in fresh[1:]:
        walk.append((1 - drift) * walk[-1] + drift**0.5 * step)
    return torch.stack(walk).to(dtype)


class ReactiveDenoiser:
    """A network-free model whose logits depend on the whole canvas of a row: a wrong commit changes what follows.

    Every position mixes random embeddings of all tokens that it sees by distance. float64, so that rounding cannot
    explain a difference. Keeps count of its calls per row length for tests of accounting. Its three layers of attention
    are made up as well, and depend on the canvas.
    """

    shows_attention = True

    def __init__(self, seed: int = 0, vocab: int = 23, scale: float = 3.0, eos_ids: tuple[int, ...] = (EOS,)) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.embed = torch.randn(vocab, 12, generator=generator, dtype=torch.float64)
        self.head = torch.randn(12, vocab, generator=generator, dtype=torch.float64) * scale
        self.place = torch.randn(512, 12, generator=generator, dtype=torch.float64)
        self.spec = ModelSpec("reactive", "reactive", vocab, MASK, eos_ids, (MASK,), 512)
        self.device = torch.device("cpu")
        self.rows_seen: list[tuple[int, ...]] = []

    def __call__(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        frames = []
        for span, row in zip(spans, torch.split(tokens, [len(span) for span in spans]), strict=True):
            self.rows_seen.append(tuple(row.tolist()))
            place = torch.cat([torch.arange(*part) for part in span.stretches()])
            own = len(row) - (span.shadow[1] - span.shadow[0])
            hidden = torch.zeros(len(row), len(row), dtype=torch.bool)
            hidden[:own, own:] = True
            hidden[own:, :own] = place[own:, None] == place[:own]
            near = torch.exp(-(place[:, None] - place).abs().double() / 4).masked_fill(hidden, 0.0)
            state = near @ self.embed[row] / 2 + self.place[place] / 4
            frames.append(torch.tanh(state) @ self.head)
            for layer in range(3):
                if span.attention is not None and span.attention.wants(layer, 3):
                    here = slice(span.attention.start, span.attention.stop)
                    scores = state.roll(layer, dims=1) @ state.T
                    span.attention.add(scores.softmax(dim=1)[None, here, here])
        return torch.cat(frames)[select]


def decode_one(model: object, prompt: tuple[int, ...], policy: Policy, **settings: object) -> Output:
    """One row through a fresh engine."""
    return Engine(model, verifier=ReactiveDenoiser(99)).generate([Request(prompt, policy, Decode(**settings))])[0]  # type: ignore[arg-type]


def scan(
    logits: Tensor, places: Tensor, trajectories: Trajectories, needs: Needs, proposal: Tensor | None = None,
    backend: str = "auto",
) -> dict[str, Tensor]:  # fmt: skip
    """Measure all `needs` at P places of [R * L] and move their history on by one step: what was found, [P] each."""
    observed = torch.zeros_like(trajectories.seen)
    observed.view(-1)[places] = True
    step = trajectories.scan(logits, needs, observed, places=places, proposal=proposal, backend=backend)
    refuse_unusable(step)
    found = {**step.at_places, "first": step.first}
    if needs.contrast is not None and not step.fused:
        everywhere = torch.arange(len(places))
        found |= step.contrast(everywhere, [name for name in CONTRASTED if name in needs])
    trajectories.follow(step, observed)
    return found
