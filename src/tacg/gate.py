"""The paper on one screen: Trajectory-Aware Commit Gating (Wang, Luo, Li, Guo, Xu; "TACG", 2026).

The base posterior says *which* token; the gate only says *when*. Three parts decide:
temporal support (TILG: has the proposal gained on an EMA of past logits?), persistence (the History Gate: has it
stayed the same for a few steps?) and a budget (at most `k_extra` promotions a row and step).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tacg.errors import TacgError
from tacg.knobs import Knobs, knob
from tacg.scan import Look, Memory, observe
from tacg.types import Contrast, Needs, Signals, top

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

SNAPSHOT = Needs("margin", "entropy")
ROUNDING = 1e-5  # relative, far more than there is
FEW = 4  # positions whose readout is measured sooner than one has found out who needs it


@dataclass(frozen=True)
class GateConfig(Knobs):
    """The gate's knobs. History Gate only: k_extra=0. TILG only: m_base=m_extra=1. Neither: the base policy.

    The last three and `steady` are not in the paper; their defaults change nothing.
    """

    w: float = knob(0.3, "weight of the contrast between current logits and reference", symbol="w", low=0)
    beta: float = knob(0.95, "decay of the EMA reference", symbol="β", low=0, high=1)
    support_lambda: float = knob(0.05, "weight of support in readiness", symbol="λ", low=0)
    tau_floor: float = knob(0.8, "confidence below which nothing is promoted", symbol="τ_floor", low=0, high=1)
    tau_escape: float = knob(0.95, "confidence that needs no persistence (above 1: never)", symbol="τ_esc", low=0)
    m_base: int = knob(3, "steps a base proposal must persist", symbol="m_base", low=1)
    m_extra: int = knob(2, "steps a promotion must persist (the paper: <= m_base)", symbol="m_extra", low=1)
    k_extra: int = knob(2, "promotions a row and step at most", symbol="K_extra", low=0)
    support: str = knob(
        "gain",
        "probability gain q(x̂) - p_ref(x̂), clipped log ratio, or steady: the gain, counted against a proposal",
        symbol="σ",
        choices=("gain", "log_ratio", "steady"),
    )
    gamma: float = knob(1.0, "upper clip of the log-ratio support", symbol="γ", low=0)
    eps: float = knob(1e-6, "smoothing inside the log-ratio support", symbol="ε", low=0)
    preserve_margin: float | None = knob(
        None, "top-1 minus top-2 margin that keeps a base decision", symbol="preserve_base", low=0
    )
    k_ratio: float | None = knob(
        None, "promotions also at most this share of the base policy's set, at least 1 (released code)", low=0
    )
    rejoin: bool = knob(True, "a base proposal that was held back may be promoted (released code: no)")
    peak: float | None = knob(None, "support above which nothing is promoted: it came too suddenly", low=0)

    def needs(self) -> Needs:
        """The signals that the gate itself reads."""
        names = {"reference"} if self.support == "log_ratio" else {"reference", "readout"}
        if self.preserve_margin is not None:
            names.add("margin")
        return Needs(*names, contrast=Contrast(self.w, self.beta))


@dataclass(frozen=True, slots=True)
class GateStep:
    """What the gate decided, all [B, L]. `commit` = `base` | `extra`. Outside the mask: token -1, streak 1, rest 0.

    commit, base, extra (bool); tokens, streak (int64); confidence, support, readiness (float).
    """

    commit: Tensor
    base: Tensor
    extra: Tensor
    tokens: Tensor
    confidence: Tensor
    support: Tensor
    readiness: Tensor
    streak: Tensor


class GateState:
    """The trajectory that `commit_step` carries from step to step. A fresh one is neutral everywhere."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self.shape: tuple[int, ...] | None = None  # (B, L, V)
        self.memory: Memory | None = None
        self.tokens: Tensor | None = None  # int64 [B, L], the last proposals
        self.streak: Tensor | None = None  # int64 [B, L]
        self.steps = 0


def persistence(signals: Signals, tokens: Tensor | None, streak: Tensor | None) -> Tensor:
    """h: int64 [R, W], consecutive observations with an unchanged proposal; 1 at the first one."""
    if tokens is None or streak is None:
        return torch.ones_like(signals.token)
    same = signals.observed & ~signals.first & (signals.token == tokens)
    return torch.where(same, streak + 1, 1)


def temporal_support(signals: Signals, config: GateConfig) -> Tensor:
    """σ: float [R, W], how much the trajectory supports the proposal: probability gain or clipped log ratio.

    `steady` is ours: the negative gain, for models whose sudden peaks are more often wrong (docs/results.md).
    """
    if config.support != "log_ratio":
        gain = (signals.readout - signals.reference).clamp(min=0.0)
        return gain if config.support == "gain" else -gain
    ratio = (signals.confidence + config.eps).log() - (signals.reference + config.eps).log()
    return torch.where(signals.observed, ratio.clamp(0.0, config.gamma), 0.0)


def commit_rule(
    signals: Signals, base_ready: Tensor, streak: Tensor, config: GateConfig, goal: Tensor | None = None
) -> GateStep:
    """The commit rule on scalars: History Gate, floor, capped promotion.

    base_ready  bool [R, W], the underlying decoder's accepted set
    goal        int64 [R], commits that each row is to reach, if need be by readiness; None: nobody asks for that

    Support is measured only where it can decide something: it moves readiness by at most λ, so that most positions
    win or lose by confidence alone, and most others once the reference is known (`most_support`). Signals that know it
    everywhere are used as they are.
    """
    confidence = signals.confidence
    escaped = confidence >= config.tau_escape

    kept = (streak >= config.m_base) | escaped
    if config.preserve_margin is not None:
        kept |= signals.margin >= config.preserve_margin
    base = base_ready & signals.eligible & kept

    candidates = signals.eligible & ~base & (confidence >= config.tau_floor)
    candidates &= (streak >= config.m_extra) | escaped
    if not config.rejoin:
        candidates &= ~base_ready
    budget = _budget(base_ready, signals.eligible, config)
    support = torch.zeros_like(confidence)
    if signals.later is not None or "reference" in signals.measured:
        signals, asked = _settled(signals, base, candidates, budget, goal, config)
        if asked is not None:
            support = torch.where(asked, temporal_support(signals, config), support)
    readiness = confidence + config.support_lambda * support
    if config.peak is not None:
        candidates &= support.abs() <= config.peak
    extra = top(readiness, candidates, budget)

    return GateStep(
        base | extra,
        base,
        extra,
        signals.token,
        confidence,
        support,
        readiness.masked_fill(~signals.observed, 0),
        streak,
    )


def _budget(base_ready: Tensor, eligible: Tensor, config: GateConfig) -> Tensor:
    """How many may be promoted, int64 [R]: K_extra, or fewer in proportion to the base policy's set."""
    if config.k_ratio is None:
        return torch.full((len(base_ready),), config.k_extra, device=base_ready.device)
    share = (base_ready & eligible).sum(dim=1).clamp(min=1) * config.k_ratio
    return share.ceil().long().clamp(min=1).clamp(max=config.k_extra)


def _settled(
    signals: Signals, base: Tensor, candidates: Tensor, budget: Tensor, goal: Tensor | None, config: GateConfig
) -> tuple[Signals, Tensor | None]:
    """The signals with as much of the contrast as support needs, and where, bool [R, W] (None: nowhere)."""
    if signals.later is None:
        return signals, signals.observed
    if config.peak is not None:
        return signals.known(signals.observed), signals.observed
    contests = [(candidates, budget)]
    if goal is not None:
        left = goal - base.sum(dim=1)
        if bool((left > 0).any()):
            short = left > torch.minimum(candidates.sum(dim=1), budget)
            contests.append((signals.eligible & ~base & short[:, None], left))
    contests = [(among & _open(among, count)[:, None], count) for among, count in contests]
    contests = [(among, count) for among, count in contests if bool(among.any())]
    if not contests:
        return signals, None

    most = config.gamma if config.support == "log_ratio" else 1.0
    asked = _undecided(signals.confidence, most, contests, config)
    signals = signals.known(asked, "reference")
    if config.support == "log_ratio":
        return signals, asked
    if int(asked.sum()) <= FEW:
        return signals.known(asked, "readout"), asked
    known = torch.where(asked, most_support(signals, config), most)
    asked = _undecided(signals.confidence, known, contests, config)
    return signals.known(asked, "readout"), asked


def most_support(signals: Signals, config: GateConfig) -> Tensor:
    """What the gain can be at most, float [R, W], before the readout is known.

    The logits lie between readout and reference, and log-sum-exp is convex: (1 + w) log p ≥ log q + w log p_ref.
    """
    reference = signals.reference.clamp_min(torch.finfo(signals.reference.dtype).tiny)
    readout = signals.confidence * (signals.confidence / reference) ** config.w
    return (readout.clamp_max(1.0) * (1 + ROUNDING) - reference).clamp_min(0.0)


def _open(among: Tensor, count: Tensor) -> Tensor:
    """Rows where some of `among` will be one of the `count` readiest and others will not, bool [R]."""
    return (count > 0) & (among.sum(dim=1) > count)


def _undecided(
    confidence: Tensor, most: Tensor | float, contests: list[tuple[Tensor, Tensor]], config: GateConfig
) -> Tensor:
    """Who may be one of the `count` readiest of its row in a contest (among, count) with support of 0 up to `most`."""
    reach = config.support_lambda * most * (1 + ROUNDING)
    low, high = (confidence - reach, confidence) if config.support == "steady" else (confidence, confidence + reach)
    asked = torch.zeros_like(contests[0][0])
    for among, count in contests:
        order = low.masked_fill(~among, -torch.inf).sort(dim=1, descending=True).values
        last = order.gather(1, (count - 1).clamp(0, low.shape[1] - 1)[:, None])
        asked |= among & (high >= last)
    return asked


def commit_step(
    logits: Tensor,
    mask: Tensor,
    base_gate: Tensor | Callable[[Signals], Tensor],
    state: GateState,
    config: GateConfig | None = None,
    *,
    lazy: bool = False,
) -> GateStep:
    """One step of the paper's rule for anybody's own loop; `state` is updated in place.

    logits     float [B, L, V], aligned: position i predicts token i
    mask       bool [B, L], positions that are still masked; only these are read
    base_gate  bool [B, L], or a function of `Signals` that returns one. A function may carry an attribute
               `needs` (a `Needs`) to ask for more than margin and entropy, for example `Needs("kl")`.
    lazy       measure support only where it can change a decision: the same commits, faster; `support` is 0 and
               `readiness` the confidence elsewhere

    If `base_gate` raises or logits are unusable, the trajectory starts over.

    No position is forced: a step may commit nothing. Write with `torch.where(step.commit, step.tokens, x)`.
    """
    config = config or GateConfig()
    _check(logits, mask, state)
    if not callable(base_gate):
        _check_base(base_gate, mask)
    if state.memory is None:
        state.shape, state.memory = tuple(logits.shape), Memory(mask.shape[0], mask.shape[1], logits.device)
    wanted = getattr(base_gate, "needs", SNAPSHOT) if callable(base_gate) else Needs()
    if "noise" in wanted:
        raise TacgError("`noise` is drawn by the engine, from a row's own generator; `commit_step` has none.")
    count = torch.full((len(mask),), state.steps, device=mask.device)
    slots = mask.reshape(-1).nonzero().squeeze(1)
    look = Look(logits.flatten(0, 1), slots, state.memory, wanted | config.needs(), rows=slots)
    try:
        look.refuse_unusable()
        signals = observe(look, mask, mask, step=count, steps=count + mask.shape[1], eager=not lazy)
        if callable(base_gate):
            base_gate = base_gate(signals)
            _check_base(base_gate, mask)
    except BaseException:
        state.restart()  # a step was seen and not decided: rather no trajectory than a wrong one
        raise

    streak = persistence(signals, state.tokens, state.streak)
    step = commit_rule(signals, base_gate, streak, config)
    look.follow()
    state.tokens, state.streak, state.steps = signals.token, streak, state.steps + 1
    return step


def _check(logits: Tensor, mask: Tensor, state: GateState) -> None:
    if logits.dim() != 3 or not logits.is_floating_point():
        raise TacgError(f"`logits` must be float [B, L, V], got {logits.dtype} {tuple(logits.shape)}.")
    if mask.dtype != torch.bool or mask.shape != logits.shape[:2]:
        raise TacgError(
            f"`mask` must be bool {tuple(logits.shape[:2])} as `logits` is {tuple(logits.shape)}, "
            f"got {mask.dtype} {tuple(mask.shape)}."
        )
    if mask.device != logits.device:
        raise TacgError(f"`mask` must be on the device of `logits`, {logits.device}, got {mask.device}.")
    if state.memory is None:
        return
    if state.shape != tuple(logits.shape) or state.memory.seen.device != logits.device:
        raise TacgError(
            f"`state` follows logits of shape {state.shape} on {state.memory.seen.device}, got {tuple(logits.shape)} "
            f"on {logits.device}. Start another sequence with a fresh GateState()."
        )


def _check_base(base_ready: Tensor, mask: Tensor) -> None:
    if not isinstance(base_ready, torch.Tensor):
        raise TacgError(f"`base_gate` must be a bool tensor or a function of signals, got {type(base_ready).__name__}.")
    if base_ready.dtype != torch.bool or base_ready.shape != mask.shape:
        raise TacgError(
            f"`base_gate` must give bool {tuple(mask.shape)}, got {base_ready.dtype} {tuple(base_ready.shape)}."
        )
