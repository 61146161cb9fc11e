"""Our own default: the entropy budget of EB-Sampler (Ben-Hamu et al., 2025), with the persistence of TACG
(Wang et al., 2026) as a discount instead of a gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.gate import persistence
from tacg.knobs import knob
from tacg.policies.base import Policy, State
from tacg.policies.eb import within_budget
from tacg.types import Decision, Needs

if TYPE_CHECKING:
    from tacg.types import Signals


@dataclass(frozen=True)
class Auto(Policy):
    """Commit the surest positions while their entropies add up to at most `bound`; persistent proposals cost less.

    A sum of entropies bounds how much positions can depend on each other. A proposal that stayed the same while others
    were committed depends on them less than its entropy suggests. Each step without a change therefore reduces its
    cost, down to the share `least`.
    """

    name: ClassVar[str] = "auto"
    frontier: ClassVar = ("bound", (1.0, 0.3, 0.1, 0.03, 0.01, 0.001))

    bound: float = knob(0.03, "bound on the joint entropy, in nats", symbol="γ", low=0, per_row=True)
    discount: float = knob(
        0.5, "factor on a proposal's cost for each step without a change", symbol="δ", low=0, high=1, per_row=True
    )
    least: float = knob(0.125, "minimum cost, as a share of the entropy", symbol="δ_min", low=0, high=1, per_row=True)

    @property
    def needs(self) -> Needs:
        """The entropy."""
        return Needs("entropy")

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """tokens and streak int64 [rows, width]."""
        board = torch.zeros(rows, width, dtype=torch.int64, device=device)
        return {"tokens": board, "streak": board}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The longest prefix of the row, sorted by cost, that stays within the bound."""
        streak = persistence(signals, state["tokens"], state["streak"])
        share = (self.discount ** (streak - 1).float()).clamp(min=self.least)
        cost = signals.entropy * share
        decision = Decision(
            within_budget(cost, signals.eligible, self.bound), rank=-cost, notes={"streak": streak, "cost": cost}
        )
        return decision, {"tokens": signals.token, "streak": streak}
