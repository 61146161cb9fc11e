"""APD: Israel et al., "Accelerating Diffusion LLMs via Adaptive Parallel Decoding", arXiv 2506.00413, 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Decision, Mix, Needs

if TYPE_CHECKING:
    from tacg.types import Signals


@dataclass(frozen=True)
class Apd(Policy):
    """Commit from left to right as long as the mixture with a small autoregressive model would write the same.

    The proposals of all masks are the draft. The verifier (`tacg.load(model, verifier=…)`) reads it in one forward, and
    the target is the argmax of weight · z + (1 - weight) · z_verifier. The longest run of masks from the left on which
    draft and target agree is committed, and always at least the first mask. The target is greedy at any temperature, as
    in the authors' code. APD itself has no blocks; here `block_length` also bounds the draft.
    """

    name: ClassVar[str] = "apd"
    frontier: ClassVar = ("weight", (0.95, 0.9, 0.8, 0.7, 0.6, 0.5))

    weight: float = knob(0.7, "weight of the diffusion model in the target", symbol="R", low=0, high=1)
    lookahead: int = knob(100, "positions from the first mask that may be committed", symbol="M", low=1, per_row=True)

    @property
    def needs(self) -> Needs:
        """The target, which the verifier provides."""
        return Needs(verifier=Mix(self.weight))

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The masks before the first disagreement."""
        assert signals.verified is not None
        wrong = signals.eligible & (signals.token != signals.verified)
        place = torch.arange(wrong.shape[1], device=wrong.device)
        start = torch.where(signals.eligible, place, wrong.shape[1]).amin(dim=1, keepdim=True)
        agreed = (wrong.cumsum(dim=1) == 0) & (place < start + self.lookahead)
        ready = signals.eligible & (agreed | (place == start))
        return Decision(ready, rank=-place.expand_as(wrong).float()), state
