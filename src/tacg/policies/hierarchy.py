"""Hierarchy decoding: "Hierarchy Decoding: A Training-free Parallel Decoding Strategy for Diffusion Large Language
Models", ICLR 2026. The re-masking variant is that of dInfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Decision, Needs, top

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Signals


@dataclass(frozen=True)
class Hierarchy(Policy):
    """Commit the surest position of every run of masks, which splits the remaining masks into ever shorter runs.

    It must be above `low`; positions above `threshold` are committed everywhere. With `remask`, committed tokens whose
    confidence falls below that value are reconsidered: they are rewritten or re-masked. At least one more mask is
    written than is re-masked.
    """

    name: ClassVar[str] = "hierarchy"
    frontier: ClassVar = ("low", (0.2, 0.4, 0.5, 0.62, 0.75, 0.9))

    threshold: float = knob(0.76, "confidence that is committed anywhere", symbol="τ_high", low=0, high=1, per_row=True)
    low: float = knob(0.62, "confidence of the surest of a run", symbol="τ_low", low=0, high=1, per_row=True)
    remask: float | None = knob(
        None, "confidence below which a committed token is open again (none: never)", symbol="τ_re", low=0, high=1,
        per_row=True,
    )  # fmt: skip

    @property
    def revises(self) -> bool:
        """Only with `remask`."""
        return self.remask is not None

    @property
    def needs(self) -> Needs:
        """Committed positions as well, if they may be re-masked."""
        return Needs(committed=self.revises)

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The surest position of each run, and every position above the threshold."""
        sure = signals.confidence
        if self.remask is None:
            return Decision(self._chosen(sure, signals.eligible), rank=sure), state
        assert signals.masked is not None
        doubted = signals.observed & ~signals.masked & (sure < self.remask)
        pool = signals.eligible | doubted
        chosen = self._chosen(sure, pool)
        doubts = doubted.sum(dim=1)  # up to this many may be re-masked, so one more is written
        chosen = chosen | top(sure, pool & ~chosen, (doubts + 1 - chosen.sum(dim=1)) * (doubts > 0))
        edit = chosen & doubted & (signals.token != signals.written)
        return Decision(chosen & signals.eligible, rank=sure, edit=edit, remask=doubted & ~chosen), state

    def _chosen(self, sure: Tensor, pool: Tensor) -> Tensor:
        return pool & ((sure > self.threshold) | _best_of_runs(sure, pool) & (sure > self.low))


def _best_of_runs(score: Tensor, among: Tensor) -> Tensor:
    """The best position of each maximal run of `among`, bool [R, L]; ties go to the lowest position."""
    size = score.shape[1]
    place = torch.arange(size, device=score.device)
    starts = among & (~among.roll(1, dims=1) | (place == 0))
    run = (starts.cumsum(dim=1) - 1).clamp(min=0)  # gaps count as part of the run before, with score -inf
    score = torch.where(among, score, -torch.inf)
    best = torch.full_like(score, -torch.inf).scatter_reduce(1, run, score, "amax").gather(1, run)
    equals = torch.where(among & (score == best), place, size)
    return place == torch.full_like(run, size).scatter_reduce(1, run, equals, "amin").gather(1, run)
