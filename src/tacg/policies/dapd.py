"""DAPD: Jeon et al., "DAPD: Dependency-Aware Parallel Decoding via Attention for Diffusion LLMs", arXiv 2603.12996,
2026."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.types import Decision, Needs

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Signals

ROUNDS = 16


@dataclass(frozen=True)
class Dapd(Policy):
    """Commit positions together that do not attend to each other: an independent set of the attention graph.

    Masks i and j are joined if (a_ij + a_ji) / 2 is above `edge`. The set is built greedily by (Σ_j s_ij) · c_i. When
    less than half of the block is masked, positions above the confidence `sure` are committed as well.

    The authors' `edge` depends on the step, but we found no description of how; ours is one number.
    """

    name: ClassVar[str] = "dapd"
    frontier: ClassVar = ("edge", (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003))

    edge: float = knob(0.01, "attention above which two masks depend on each other", symbol="τ", low=0, per_row=True)
    sure: float = knob(0.9, "confidence to commit once half of the block is written", low=0, high=1, per_row=True)
    layers: float = knob(0.3, "share of the layers whose attention counts, the last ones", low=0.01, high=1)

    @property
    def needs(self) -> Needs:
        """Attention of the late layers within the block."""
        return Needs(attention=self.layers)

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The independent set, and in the second half of the block also positions that are sure."""
        assert signals.attention is not None
        assert signals.grid is not None
        assert signals.current is not None
        assert signals.length is not None
        pairs = signals.eligible[:, :, None] & signals.eligible[:, None, :]
        pairs = pairs & ~torch.eye(pairs.shape[1], dtype=torch.bool, device=pairs.device)
        mutual = (signals.attention + signals.attention.mT) / 2 * pairs
        rank = mutual.sum(dim=2) * signals.confidence
        joined = (mutual.flatten(1) > self.edge).view_as(mutual)  # flattened, because a per-row knob is [R, 1]
        ready = independent_set(joined, rank, signals.eligible)

        place = torch.arange(rank.shape[1], device=rank.device)
        inside = (signals.grid == signals.current[:, None]) & (place < signals.length[:, None])
        few = 2 * signals.eligible.sum(dim=1) < inside.sum(dim=1)
        sure = signals.eligible & (signals.confidence > self.sure) & few[:, None]
        return Decision(ready | sure, rank=rank), state


def independent_set(joined: Tensor, rank: Tensor, among: Tensor) -> Tensor:
    """The greedy independent set by decreasing rank, bool [R, L]; ties go to the lowest position.

    joined bool [R, L, L], symmetric; rank float [R, L]; among bool [R, L].

    Taking positions one by one would need L rounds. Here each round takes every position that outranks all its
    remaining neighbours, which gives the same set. A round settles at least two positions or is the last, so ROUNDS of
    them suffice for 2 · ROUNDS positions. In larger blocks a long chain of neighbours may need more; the rest of it
    waits for the next step.
    """
    order = rank.masked_fill(~among, -torch.inf).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    first = order.shape[1] - order  # 1 for the last position, never 0
    taken, left = torch.zeros_like(among), among
    for _ in range(min(ROUNDS, (among.shape[1] + 1) // 2)):
        rival = (first * left)[:, None, :].masked_fill(~joined, 0).amax(dim=2)
        best = left & (first > rival)
        beside = (joined & best[:, None, :]).any(dim=2)
        taken, left = taken | best, left & ~best & ~beside
    return taken
