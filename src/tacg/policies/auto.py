"""Our own default: a budget of doubts, in which proposals that persist cost less, as TACG (Wang et al., 2026) suggests.

The budget is that of EB-Sampler (Ben-Hamu et al., 2025) with doubts instead of entropies. Blocks open early as in d3LLM
(Qian et al., 2026).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.gate import persistence
from tacg.knobs import knob
from tacg.policies.base import Policy, State, opened_next
from tacg.types import Decision, Needs, but_not, top

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Signals


@dataclass(frozen=True)
class Auto(Policy):
    """Commit the surest positions while their doubts add up to at most `bound`; persistent proposals cost less.

    The doubt of a proposal is one minus its confidence. The sum of doubts bounds the probability that any of them is
    wrong. A proposal that stayed the same while others were committed is safer than its confidence says, so each step
    without a change reduces its cost, down to the share `least`.

    Later blocks open early, but only for what is nearly certain: all of their doubts must fit into `ahead`. If few
    positions pass, the next surest of the active block passes, too. Text that could go on in several ways has to be
    started somehow.
    """

    name: ClassVar[str] = "auto"
    frontier: ClassVar = ("bound", (0.5, 0.2, 0.1, 0.05, 0.02, 0.005, 0.001))

    bound: float = knob(0.05, "bound on the sum of doubts", symbol="γ", low=0, per_row=True)
    discount: float = knob(
        0.5, "factor on a proposal's cost for each step without a change", symbol="δ", low=0, high=1, per_row=True
    )
    least: float = knob(0.25, "minimum cost, as a share of the doubt", symbol="δ_min", low=0, high=1, per_row=True)
    lean: int = knob(3, "if fewer positions pass, one more does", symbol="κ", low=0, per_row=True)
    ahead: float = knob(0.01, "bound on the sum of doubts in later blocks; 0: one block at a time", symbol="γ_+", low=0)
    add: float = knob(
        0.5, "share of the last open block that opens the next one", symbol="θ_add", low=0, high=1, per_row=True
    )

    @property
    def needs(self) -> Needs:
        """Nothing beyond token and confidence, in all open blocks."""
        return Needs(scope="open" if self.ahead else "block")

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """tokens and streak int64 [rows, width]."""
        board = torch.zeros(rows, width, dtype=torch.int64, device=device)
        return {"tokens": board, "streak": board}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The budget over what is allowed, and one more if that is little."""
        streak = persistence(signals, state["tokens"], state["streak"])
        cost = (1 - signals.confidence) * (self.discount ** (streak - 1).float()).clamp(min=self.least)
        active = signals.eligible if signals.active is None else signals.active
        allowed = active | affordable(cost, but_not(signals.eligible, active), self.ahead) if self.ahead else active
        ready = affordable(cost, allowed, self.bound)
        few = ready.sum(dim=1, keepdim=True) < self.lean
        ready = ready | (top(-cost, but_not(active, ready), 1) & few)
        opened = opened_next(signals, ready, self.add) if self.ahead else None
        decision = Decision(ready, rank=-cost, open=opened, notes={"streak": streak, "cost": cost})
        return decision, {"tokens": signals.token, "streak": streak}


def affordable(cost: Tensor, among: Tensor, bound: Tensor | float) -> Tensor:
    """bool [R, L]: the cheapest positions of each row, as long as their costs sum to at most `bound`."""
    ordered, order = cost.masked_fill(~among, torch.inf).sort(dim=1, stable=True)
    return torch.zeros_like(among).scatter(1, order, ordered.cumsum(dim=1) <= bound)
