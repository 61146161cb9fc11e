"""Decide exactly as another policy does, and measure everything. For traces and diagnosis, not for speed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.gate import GateConfig, persistence, temporal_support
from tacg.policies.base import State, Wrapper
from tacg.types import EmaContrast, Needs

if TYPE_CHECKING:
    from tacg.types import Decision, Signals

PAPER = GateConfig()


@dataclass(frozen=True)
class Probe(Wrapper):
    """The base policy's decisions, with every signal recorded: streak, support, log ratio, margin, entropy, KL."""

    name: ClassVar[str] = "probe"

    @property
    def label(self) -> str:
        """The base policy's label, because nothing is decided here."""
        return self.base.label

    @property
    def needs(self) -> Needs:
        """All signals, with the base policy's contrast if it has one, otherwise the paper's."""
        contrast = self.base.needs.contrast or EmaContrast(PAPER.w, PAPER.beta)
        return self.base.needs | Needs("margin", "entropy", "kl", "reference", "readout", contrast=contrast)

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """tokens and streak int64 [rows, width]; base: the wrapped policy's state."""
        board = torch.zeros(rows, width, dtype=torch.int64, device=device)
        return {"tokens": board, "streak": board, "base": self.base.start(rows, width, device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """The base policy's decision, annotated."""
        below, base_state = self.base.decide(signals, state["base"])
        streak = persistence(signals, state["tokens"], state["streak"])
        notes = {
            "streak": streak,
            "support": temporal_support(signals, PAPER),
            "log_ratio": temporal_support(signals, GateConfig(support="log_ratio", gamma=1e9)),
        }
        decision = replace(below, notes={**below.notes, **notes})
        return decision, {"tokens": signals.token, "streak": streak, "base": base_state}
