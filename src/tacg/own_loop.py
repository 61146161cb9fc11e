"""The paper's rule for your own decoding loop: `commit_step` takes logits and decides what to commit."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from tacg.errors import LogitsError, TacgError
from tacg.gate import GateConfig, GateStep, commit_rule, persistence
from tacg.scan import Trajectories, lowest
from tacg.types import BY_ENGINE, Needs, Signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from tacg.scan import StepScan

SNAPSHOT = Needs("margin", "entropy")


class GateState:
    """The trajectory that `commit_step` carries from step to step. A new one has no history."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self.shape: tuple[int, ...] | None = None  # (B, L, V)
        self.trajectories: Trajectories | None = None
        self.tokens: Tensor | None = None  # int64 [B, L], the last proposals
        self.streak: Tensor | None = None  # int64 [B, L]
        self.steps = 0


def commit_step(
    logits: Tensor,
    mask: Tensor,
    base_gate: Tensor | Callable[[Signals], Tensor],
    state: GateState,
    config: GateConfig | None = None,
    *,
    everywhere: bool = False,
) -> GateStep:
    """One step of the paper's rule for your own loop; `state` is updated in place.

    logits      float [B, L, V], aligned: position i predicts token i
    mask        bool [B, L], positions that are still masked; only these are read
    base_gate   bool [B, L], or a function of `Signals` that returns it. The function may have an attribute
                `needs` (a `Needs`) to request more than margin and entropy, for example `Needs("kl")`.
    everywhere  measure support and readiness at every masked position, also where that takes long. By default a CPU
                without the native kernel measures them only where they can change a decision; elsewhere support is 0
                and readiness = confidence

    If `base_gate` raises or the logits are unusable, the trajectory starts over.

    A step may commit nothing: add your own fallback, or your loop may never end. Write the result with
    `torch.where(step.commit, step.tokens, x)`.
    """
    config = config or GateConfig()
    _check(logits, mask, state)
    if not callable(base_gate):
        _check_base(base_gate, mask)
    if state.trajectories is None:
        state.shape, state.trajectories = tuple(logits.shape), Trajectories(len(mask), mask.shape[1], logits.device)
        state.tokens = state.streak = torch.zeros_like(mask, dtype=torch.int64)
    assert state.tokens is not None
    assert state.streak is not None
    wanted = getattr(base_gate, "needs", SNAPSHOT) if callable(base_gate) else Needs()
    if theirs := wanted.names & {*BY_ENGINE}:
        raise TacgError(f"`{min(theirs)}` is only known to the engine; `commit_step` sees logits only.")
    count = torch.full((len(mask),), state.steps, device=mask.device)
    # A CPU reads only the masked positions. A GPU reads all of them, because listing the masked ones would stall it.
    places = mask.reshape(-1).nonzero().squeeze(1) if mask.device.type == "cpu" else None
    try:
        scan = state.trajectories.scan(
            logits.flatten(0, 1), _needs(wanted, config), mask, places=places, rows=places, exact=places is not None
        )
        refuse_unusable(scan)
        signals = scan.to_signals(mask, step=count, steps=count + mask.shape[1], eager=everywhere)
        if callable(base_gate):
            base_gate = base_gate(signals)
            _check_base(base_gate, mask)
    except BaseException:
        state.restart()  # the step was scanned but not decided: a new trajectory is better than a wrong one
        raise

    streak = persistence(signals, state.tokens, state.streak)
    step = commit_rule(signals, base_gate, streak, config)
    state.trajectories.follow(scan, mask)
    state.tokens, state.streak, state.steps = signals.token, streak, state.steps + 1
    return step


@functools.lru_cache(64)
def _needs(wanted: Needs, config: GateConfig) -> Needs:
    return wanted | config.needs()


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
    if state.trajectories is None:
        return
    if state.shape != tuple(logits.shape) or state.trajectories.seen.device != logits.device:
        raise TacgError(
            f"`state` follows logits of shape {state.shape} on {state.trajectories.seen.device}, got "
            f"{tuple(logits.shape)} on {logits.device}. Start another sequence with a fresh GateState()."
        )


def _check_base(base_ready: Tensor, mask: Tensor) -> None:
    if not isinstance(base_ready, torch.Tensor):
        raise TacgError(f"`base_gate` must be a bool tensor or a function of signals, got {type(base_ready).__name__}.")
    if base_ready.dtype != torch.bool or base_ready.shape != mask.shape:
        raise TacgError(
            f"`base_gate` must give bool {tuple(mask.shape)}, got {base_ready.dtype} {tuple(base_ready.shape)}."
        )


def refuse_unusable(scan: StepScan) -> None:
    """Raise if any logits are unusable (NaN, +inf or only -inf), naming row and position."""
    if scan.sound:
        return
    found = scan.at_places
    unusable = found["confidence"].isnan() & scan.wanted
    if not bool(unusable.any()):
        return
    width = scan.memory.width
    bad = [(slot // width, slot % width) for slot in scan.slots[unusable].tolist()]
    value = float(found["peak"][unusable][0])
    what = "only -inf" if value <= lowest(scan.logits.dtype) else str(value)
    raise LogitsError(
        f"Logits of row {bad[0][0]}, position {bad[0][1]} hold {what} ({len(bad)} such position(s) in this step). "
        "Every masked position needs at least one finite logit and no NaN or +inf: check the model's dtype "
        "and the suppressed ids.",
        bad,
    )
