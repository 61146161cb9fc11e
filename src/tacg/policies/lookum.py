"""LookUM: Lee et al., "Lookahead Unmasking Elicits Accurate Decoding in Diffusion Language Models", 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Branches, Decision, Needs, top

if TYPE_CHECKING:
    from tacg.types import Signals


@dataclass(frozen=True)
class Lookum(Policy):
    """Try several continuations, look one forward ahead, and keep the one that leaves the model least uncertain.

    Each path writes `k` positions. The first is greedy; the others sample tokens, and choose positions by confidence
    with noise. Every path costs a forward; the winner's logits are used in the next step. Positions surer than `bypass`
    are committed at once, without lookahead. The paper samples a path by importance; here the best one wins.
    """

    name: ClassVar[str] = "lookum"
    frontier: ClassVar = ("bypass", (0.5, 0.7, 0.8, 0.9, 0.95, 0.99))

    paths: int = knob(3, "alternatives per step, one forward each", symbol="N", low=2, high=32)
    k: int = knob(2, "positions that a path writes", symbol="k", low=1)
    spread: float = knob(0.1, "noise on the confidences that rank positions", symbol="τ_pos", low=0, per_row=True)
    bypass: float = knob(
        0.9, "confidence that needs no looking ahead (1: always look)", symbol="γ", low=0, high=1, per_row=True
    )

    @property
    def needs(self) -> Needs:
        """The entropy of every mask, samples and branches."""
        return Needs("entropy", scope="answer", samples=self.paths - 1, branches=self.paths)

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Commit what is sure, otherwise propose paths."""
        assert signals.samples is not None
        assert signals.draws is not None
        sure = signals.confidence
        ready = signals.eligible & (sure > self.bypass)
        looks = signals.eligible.any(dim=1) & ~ready.any(dim=1)
        commits, tokens = [top(sure, signals.eligible, self.k)], [signals.token]
        for path in range(self.paths - 1):
            draw = signals.draws[:, :, path].clamp(min=1e-20)
            gumbel = -(-draw.log()).clamp(min=1e-20).log()
            commits.append(top(sure + self.spread * gumbel, signals.eligible, self.k))
            tokens.append(signals.samples[:, :, path])
        branches = Branches(torch.stack(commits, dim=1), torch.stack(tokens, dim=1), looks * self.paths)
        return Decision(ready, rank=sure, branches=branches), state

    def choose(self, branches: Signals, state: State) -> torch.Tensor:
        """The path whose remaining masks have the lowest mean entropy."""
        left = branches.observed.sum(dim=2)
        return (branches.entropy.sum(dim=2) / left.clamp(min=1)).argmin(dim=1)
