"""TACG as its authors released it for LLaDA: Wang et al., 2026, the code published with the paper.

Here promotions are picked first, and the History Gate then filters them together with the base set; `tacg.gate`
follows the paper's order. docs/paper-and-code.md lists every difference. The authors' runs observe the whole sequence
and take one step per position (`observe="sequence"`, no `steps`); so do the presets.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.errors import TacgError
from tacg.gate import persistence
from tacg.knobs import knob
from tacg.policies.base import State, Wrapper
from tacg.types import Decision, EmaContrast, Needs, top

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Signals


def refuse_without_threshold(policy: Wrapper) -> None:
    """Raise unless the base policy has a threshold, because the released rules lower it."""
    if "threshold" not in policy.base.knobs():
        raise TacgError(
            f"`{policy.name}` needs a base policy with a threshold, {policy.base.name!r} has none: "
            "use confidence or klass."
        )


@dataclass(frozen=True)
class Released(Wrapper):
    """What the released rules share."""

    support_lambda: float = knob(0.05, "weight of support in readiness", symbol="λ", low=0)
    tau_floor: float = knob(0.8, "the base policy's threshold for promotions", symbol="τ_floor", low=0, high=1)
    tau_escape: float = knob(0.95, "confidence that needs no persistence (above 1: never)", symbol="τ_esc", low=0)
    m: int = knob(3, "steps a proposal must persist", symbol="m", low=1)
    k_extra: int = knob(2, "maximum promotions per row and step", symbol="K_extra", low=0)
    k_ratio: float = knob(0.25, "also cap promotions at this share of the base set, at least 1", low=0)
    allow_empty: bool = knob(True, "also promote when the base set is empty")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_without_threshold(self)

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """tokens and streak int64 [rows, width]; base: the wrapped policy's state."""
        board = torch.zeros(rows, width, dtype=torch.int64, device=device)
        return {"tokens": board, "streak": board, "base": self.base.start(rows, width, device)}

    def near(self, signals: Signals, state: State, ready: Tensor) -> Tensor:
        """bool [R, W]: what the base policy would also accept if its threshold were the floor."""
        lower = copy.copy(self.base)  # not `replace`, whose checks accept only numbers: rows may have different knobs
        object.__setattr__(lower, "threshold", self.tau_floor)
        return lower.decide(signals, state["base"])[0].base & ~ready

    def budget(self, ready: Tensor) -> Tensor:
        """int64 [R]: how many positions may be promoted."""
        size = ready.sum(dim=1)
        share = (size.clamp(min=1) * self.k_ratio).ceil().long().clamp(max=self.k_extra)
        return share if self.allow_empty else share * (size > 0)


@dataclass(frozen=True)
class TacgReleased(Released):
    """The rule of the released LLaDA code: pick the base set and promotions, then keep those that have persisted.

    If none has, the picked position with the highest readiness is committed; if nothing was picked, the position with
    the highest readiness of all.
    """

    name: ClassVar[str] = "tacg-released"

    w: float = knob(0.3, "weight of the contrast between current logits and reference", symbol="w", low=0)
    beta: float = knob(0.95, "decay of the EMA reference", symbol="β", low=0, high=1)

    @property
    def needs(self) -> Needs:
        """The base policy's needs, and the temporal contrast at full precision."""
        fine = EmaContrast(self.w, self.beta, fine=True)
        return self.base.needs | Needs("reference", "readout", contrast=fine)

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Pick, then filter."""
        below, base_state = self.base.decide(signals, state["base"])
        streak = persistence(signals, state["tokens"], state["streak"])
        known = signals.with_contrast(signals.eligible)
        support = (known.readout - known.reference).clamp(min=0.0)
        order = self.support_lambda * support - signals.others  # readiness - 1, which stays precise near 0 in float32
        readiness = 1.0 + order
        extra = top(order, self.near(signals, state, below.base), self.budget(below.base))
        picked = below.base | extra
        lasting = (streak >= self.m) | (signals.confidence >= self.tau_escape)
        behind = torch.where(picked, 0.0, 2.0 + self.support_lambda)  # readiness is at most 1 + λ
        decision = Decision(
            base=below.base & lasting, extra=extra & lasting, rank=order - behind,
            notes={**below.notes, "streak": streak, "support": support, "readiness": readiness},
        )  # fmt: skip
        return decision, {"tokens": signals.token, "streak": streak, "base": base_state}
