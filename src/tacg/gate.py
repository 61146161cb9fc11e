"""The paper on one screen: Trajectory-Aware Commit Gating (Wang, Luo, Li, Guo, Xu; "TACG", 2026).

The base posterior decides *which* token; the gate only decides *when*. It has three parts:
temporal support (TILG: has the proposal gained over an EMA of past logits?), persistence (the History Gate: has it
stayed the same for a few steps?) and a budget (at most `k_extra` promotions per row and step).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tacg.knobs import Knobs, knob
from tacg.lazy import where_support_matters
from tacg.types import EmaContrast, Needs, Signals, but_not, top

if TYPE_CHECKING:
    from torch import Tensor

ESCAPED = torch.iinfo(torch.int64).max  # the streak of a position that is so sure that it need not persist


@dataclass(frozen=True)
class GateConfig(Knobs):
    """The gate's knobs. History Gate only: k_extra=0. TILG only: m_base=m_extra=1. Neither: the base policy.

    The last three knobs and `support="steady"` are not in the paper; the defaults leave the paper's rule unchanged.
    """

    w: float = knob(0.3, "weight of the contrast between current logits and reference", symbol="w", low=0)
    beta: float = knob(0.95, "decay of the EMA reference", symbol="β", low=0, high=1)
    support_lambda: float = knob(0.05, "weight of support in readiness", symbol="λ", low=0, per_row=True)
    tau_floor: float = knob(
        0.8, "confidence below which nothing is promoted", symbol="τ_floor", low=0, high=1, per_row=True
    )
    tau_escape: float = knob(
        0.95, "confidence that needs no persistence (above 1: never)", symbol="τ_esc", low=0, per_row=True
    )
    m_base: int = knob(3, "steps a base proposal must persist", symbol="m_base", low=1, per_row=True)
    m_extra: int = knob(
        2, "steps a promotion must persist (the paper: <= m_base)", symbol="m_extra", low=1, per_row=True
    )
    k_extra: int = knob(2, "maximum promotions per row and step", symbol="K_extra", low=0)
    support: str = knob(
        "gain",
        "probability gain q(x̂) - p_ref(x̂), clipped log ratio, or steady: the gain, counted against a proposal",
        symbol="σ",
        choices=("gain", "log_ratio", "steady"),
    )
    gamma: float = knob(1.0, "upper clip of the log-ratio support", symbol="γ", low=0, per_row=True)
    eps: float = knob(1e-6, "smoothing inside the log-ratio support", symbol="ε", low=0, per_row=True)
    preserve_margin: float | None = knob(
        None, "top-1 minus top-2 margin that keeps a base decision", symbol="preserve_base", low=0, per_row=True
    )
    k_ratio: float | None = knob(
        None, "also cap promotions at this share of the base policy's set, at least 1 (released code)", low=0
    )
    rejoin: bool = knob(True, "a base proposal that was held back may be promoted (released code: no)")
    max_support: float | None = knob(
        None, "support above which nothing is promoted: it came too suddenly", low=0, per_row=True
    )

    def needs(self) -> Needs:
        """The signals that the gate itself reads."""
        names = {"reference"} if self.support == "log_ratio" else {"reference", "readout"}
        if self.preserve_margin is not None:
            names.add("margin")
        return Needs(*names, contrast=EmaContrast(self.w, self.beta))


@dataclass(frozen=True, slots=True)
class GateStep:
    """What the gate decided, all [R, L]. Outside the mask: token -1, streak 1, rest 0.

    commit, base, extra (bool), `commit` = `base` | `extra`; tokens, streak (int64); confidence, support, readiness
    (float). Support is measured everywhere by a fused scan or on request, else only where it can change a decision;
    elsewhere it is 0.
    """

    base: Tensor
    extra: Tensor
    tokens: Tensor
    confidence: Tensor
    support: Tensor
    readiness: Tensor
    streak: Tensor

    @property
    def commit(self) -> Tensor:
        """The positions to commit now."""
        return self.base | self.extra


def persistence(signals: Signals, tokens: Tensor, streak: Tensor) -> Tensor:
    """h: int64 [R, L], consecutive observations with an unchanged proposal; 1 at the first one."""
    same = but_not(signals.observed, signals.first) & (signals.token == tokens)
    return streak * same + 1


def temporal_support(signals: Signals, config: GateConfig) -> Tensor:
    """σ: float [R, L], how much the trajectory supports the proposal: probability gain or clipped log ratio.

    `steady` is our addition: the negative gain, for models whose sudden peaks are more often wrong (docs/log.md).
    """
    if config.support == "log_ratio":
        ratio = (signals.confidence + config.eps).log() - (signals.reference + config.eps).log()
        return torch.where(signals.observed, ratio.clamp(min=0.0).clamp(max=config.gamma), 0.0)
    gain = (signals.readout - signals.reference).clamp(min=0.0)
    return gain if config.support == "gain" else -gain


def commit_rule(
    signals: Signals, base_ready: Tensor, streak: Tensor, config: GateConfig, quota: Tensor | None = None
) -> GateStep:
    """The commit rule on per-position signals: History Gate, floor, capped promotion.

    base_ready  bool [R, L], positions that the base decoder accepts
    quota       int64 [R], commits that each row should reach, filled up by readiness if necessary; None: no quota

    Without a fused scan, support is measured only where it can change a decision (`where_support_matters`).
    """
    confidence = signals.confidence
    persisted = streak.masked_fill(confidence >= config.tau_escape, ESCAPED)

    kept = persisted >= config.m_base
    if config.preserve_margin is not None:
        kept |= signals.margin >= config.preserve_margin
    base = base_ready & signals.eligible & kept

    candidates = but_not(signals.eligible, base) & (confidence >= config.tau_floor) & (persisted >= config.m_extra)
    if not config.rejoin:
        candidates = but_not(candidates, base_ready)
    budget: Tensor | int = config.k_extra
    if config.k_ratio is not None:
        share = (base_ready & signals.eligible).sum(dim=1).clamp(min=1) * config.k_ratio
        budget = share.ceil().long().clamp(min=1).clamp(max=config.k_extra)

    signals, asked = where_support_matters(signals, base, candidates, budget, quota, config)
    if asked is None:
        support, readiness = torch.zeros_like(confidence), confidence
    else:
        support = temporal_support(signals, config)
        if asked is not signals.observed:
            support = torch.where(asked, support, 0.0)
        readiness = confidence + config.support_lambda * support
    if config.max_support is not None:
        candidates &= support.abs() <= config.max_support
    extra = top(readiness, candidates, budget) if config.k_extra else torch.zeros_like(base)
    return GateStep(base, extra, signals.token, confidence, support, readiness, streak)
