"""SWD: Wu and Huang, "Stability-Weighted Decoding for Diffusion Language Models", 2026."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.errors import TacgError
from tacg.knobs import knob
from tacg.policies.base import State, Wrapper
from tacg.types import Needs

if TYPE_CHECKING:
    from tacg.types import Decision, Signals


@dataclass(frozen=True)
class Swd(Wrapper):
    """Decode as the base policy does, but lower the confidence of positions whose posterior is still changing.

    Confidence (and margin) are multiplied by exp(-λ KL(p_{t-1} || p_t)) before the base policy reads them. A first
    observation has no past and is left unchanged. Public copies compare it with the uniform distribution instead, so
    that the least sure position of a block is committed first.
    """

    name: ClassVar[str] = "swd"

    stability_lambda: float = knob(
        5.0, "how strongly a changing posterior lowers the confidence", symbol="λ", low=0, per_row=True
    )
    first: str = knob(
        "neutral", "what a first observation is compared with: itself (neutral) or the uniform distribution",
        choices=("neutral", "uniform"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if "entropy" in self.base.needs:
            raise TacgError(
                f"`swd` weighs confidence and margin, but `{self.base.name}` decides by entropy here: try it over "
                "`confidence`, `frechet` or `schedule`."
            )
        if self.base.needs.contrast is not None:
            raise TacgError(f"`swd` must be under the gate, not over it: try `{self.base.name}+swd`.")

    @property
    def needs(self) -> Needs:
        """The base policy's needs, and KL(previous step || this step)."""
        return self.base.needs | Needs("reverse_kl")

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """base: the wrapped policy's state."""
        return {"base": self.base.start(rows, width, device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The base policy's decision on the reduced confidence and margin."""
        moved = signals.reverse_kl
        if self.first == "neutral":
            moved = moved.masked_fill(signals.first, 0.0)
        weight = torch.exp(-self.stability_lambda * moved)
        margin = {"margin": signals.margin * weight} if "margin" in self.base.needs else {}
        measured = {name: board for name, board in signals.measured.items() if name != "others"}  # not reweighted
        weighed = replace(signals, confidence=signals.confidence * weight, measured={**measured, **margin})
        below, base_state = self.base.decide(weighed, state["base"])
        return replace(below, notes={**below.notes, "stability": weight}), {"base": base_state}
