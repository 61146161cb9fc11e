"""TACG: Wang et al., "Trajectory-Aware Commit Gating for Diffusion Language Model Decoding", 2026.

The rule itself is in `tacg.gate`; this file only connects it to the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.gate import GateConfig, commit_rule, persistence
from tacg.knobs import knob
from tacg.policies import native_gate
from tacg.policies.base import State, Wrapper
from tacg.types import Needs

if TYPE_CHECKING:
    from tacg.types import Decision, Signals


@dataclass(frozen=True)
class Tacg(Wrapper):
    """Hold back what the base policy would commit too early, and promote a few positions that the trajectory supports.

    Without a promotion budget (`k_extra=0`) no reference is kept and the base policy's own ranking is used. With
    `m_base=1` as well, the base policy is unchanged.
    """

    name: ClassVar[str] = "tacg"

    gate: GateConfig = field(default_factory=GateConfig)
    fallback: str = knob("readiness", "what picks a position when none is ready", choices=("readiness", "base"))

    @property
    def needs(self) -> Needs:
        """The base policy's needs, and those of the gate's active parts."""
        mine = self.gate.needs() if self.gate.k_extra else Needs(*(self.gate.needs().names & {"margin"}))
        return self.base.needs | mine

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """tokens and streak int64 [rows, width]; base: the wrapped policy's state."""
        board = torch.zeros(rows, width, dtype=torch.int64, device=device)
        return {"tokens": board, "streak": board, "base": self.base.start(rows, width, device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Ask the base policy, then gate its decision."""
        below, base_state = self.base.decide(signals, state["base"])
        ready = below.base if below.extra is None else below.base | below.extra
        ranking = self.gate.k_extra > 0 and self.fallback == "readiness"
        if native_gate.is_native(signals, self.gate):
            step = native_gate.gate(signals, ready, state["tokens"], state["streak"], self.gate)
        else:
            streak = persistence(signals, state["tokens"], state["streak"])
            quota = signals.quota() if below.quota is None else below.quota.clamp(min=1)
            step = commit_rule(signals, ready, streak, self.gate, quota if ranking else None)
        decision = replace(
            below,
            base=step.base,
            extra=step.extra,
            rank=step.readiness if ranking else below.rank,
            notes={**below.notes, "streak": step.streak, "support": step.support, "readiness": step.readiness},
        )
        return decision, {"tokens": signals.token, "streak": step.streak, "base": base_state}
