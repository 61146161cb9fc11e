"""TACG as its authors released it for Dream: Wang et al., 2026, the code published with the paper; two rules.

Neither has an EMA of logits: support is the gain in the proposal's probability since the previous step; at a first
observation it is the whole probability. The History Gate applies to promotions only, never to the base set. If nothing
is ready, their fallback picks the position (`dreams_pick`). docs/paper-and-code.md lists every difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.gate import persistence
from tacg.knobs import knob
from tacg.policies.base import State, Wrapper, dreams_pick
from tacg.policies.tacg_released import Released, refuse_without_threshold
from tacg.types import Decision, EmaContrast, Needs, top

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Signals

PREVIOUS = EmaContrast(w=0.0, beta=0.0)  # an EMA without memory is the previous step


def gain(signals: Signals) -> Tensor:
    """float [R, W]: the gain in the proposal's probability since the previous step."""
    before = signals.with_contrast(signals.eligible, "reference").reference.masked_fill(signals.first, 0.0)
    return (signals.confidence - before).clamp(min=0.0)


@dataclass(frozen=True)
class TacgReleasedDream(Released):
    """The rule of the released Dream code: the base set, promotions that persist, and everything above the escape.

    Over `confidence` it is their `…capped_extra`, over `klass` their `dream_klass_tilg`.
    """

    name: ClassVar[str] = "tacg-released-dream"

    @property
    def needs(self) -> Needs:
        """The base policy's needs, the previous step, and the signal that the fallback ranks by."""
        return self.base.needs | Needs("sharp", "reference", contrast=PREVIOUS)

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Add to the base set."""
        below, base_state = self.base.decide(signals, state["base"])
        streak = persistence(signals, state["tokens"], state["streak"])
        support = gain(signals)
        readiness = signals.confidence + self.support_lambda * support
        near = self.near(signals, state, below.base) & (streak >= self.m)
        extra = top(readiness, near, self.budget(below.base))
        escaped = signals.eligible & (signals.confidence >= self.tau_escape)
        decision = Decision(
            base=below.base, extra=(extra | escaped) & ~below.base, rank=dreams_pick(signals),
            notes={**below.notes, "streak": streak, "support": support, "readiness": readiness},
        )  # fmt: skip
        return decision, {"tokens": signals.token, "streak": streak, "base": base_state}


@dataclass(frozen=True)
class TacgReleasedDreamEma(Wrapper):
    """The other rule of the released Dream code (`klass_ours_full`): an EMA of confidences, no budget.

    Added to the base set: stable, persistent positions whose averaged confidence plus support reaches the base
    policy's threshold, and everything above the escape.
    """

    name: ClassVar[str] = "tacg-released-dream-ema"

    support_lambda: float = knob(0.01, "weight of support", symbol="λ", low=0)
    beta: float = knob(0.95, "decay of the averaged confidence", symbol="β", low=0, high=1)
    tau_floor: float = knob(
        0.8, "averaged confidence below which support does not count", symbol="τ_floor", low=0, high=1
    )
    tau_escape: float = knob(0.95, "confidence that needs nothing else (above 1: never)", symbol="τ_esc", low=0)
    m: int = knob(3, "steps a promotion must persist", symbol="m", low=1)
    kl_extra: float = knob(0.001, "divergence up to which a position is calm", symbol="ε_extra", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_without_threshold(self)

    @property
    def needs(self) -> Needs:
        """The base policy's needs, the previous step, the divergence from it, and the fallback's signal."""
        return self.base.needs | Needs("kl", "sharp", "reference", contrast=PREVIOUS)

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """tokens and streak int64, average float [rows, width]; base: the wrapped policy's state."""
        board = torch.zeros(rows, width, dtype=torch.int64, device=device)
        average = torch.zeros(rows, width, dtype=torch.float64, device=device)
        return {"tokens": board, "streak": board, "average": average, "base": self.base.start(rows, width, device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Add to the base set."""
        below, base_state = self.base.decide(signals, state["base"])
        streak = persistence(signals, state["tokens"], state["streak"])
        sure = signals.confidence.double()
        average = torch.where(signals.first, sure, self.beta * state["average"] + (1 - self.beta) * sure)
        score = average + self.support_lambda * gain(signals) * (average >= self.tau_floor)
        lasting = (streak >= self.m) & (signals.kl <= self.kl_extra)
        threshold = getattr(self.base, "threshold")  # noqa: B009 (every base has one: see above)
        more = (score >= threshold) & lasting | (sure >= self.tau_escape)
        decision = Decision(
            base=below.base, extra=more & signals.eligible & ~below.base, rank=dreams_pick(signals),
            notes={**below.notes, "streak": streak, "average": average, "readiness": score},
        )  # fmt: skip
        return decision, {"tokens": signals.token, "streak": streak, "average": average, "base": base_state}
