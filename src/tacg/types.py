"""What is handed from room to room: `Needs`, `Signals`, `Decision`, `Commit`, `Output`. All frozen.

Shapes: R rows of a batch, W positions of a row's window (the active block, or the whole answer).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CONTRASTED = ("reference", "readout")
MEASURED = ("margin", "entropy", "kl", *CONTRASTED, "noise")


@dataclass(frozen=True, slots=True)
class Contrast:
    """The temporal contrast a policy asks for: weight `w` and decay `beta` of the EMA reference."""

    w: float
    beta: float


@dataclass(frozen=True, slots=True, init=False)
class Needs:
    """The signals a policy reads beyond token and confidence: names from `MEASURED`, and the contrast if any."""

    names: frozenset[str]
    contrast: Contrast | None

    def __init__(self, *names: str, contrast: Contrast | None = None) -> None:
        for name in names:
            if name not in MEASURED:
                raise TacgError(f"`needs` must name signals out of {', '.join(MEASURED)}; got {name!r}.")
        if contrast is None and set(CONTRASTED) & set(names):
            raise TacgError("`needs` of reference or readout must come with contrast=Contrast(w, beta).")
        object.__setattr__(self, "names", frozenset(names))
        object.__setattr__(self, "contrast", contrast)

    def __or__(self, other: Needs) -> Needs:
        if self.contrast and other.contrast and self.contrast != other.contrast:
            raise TacgError(f"Two contrasts in one policy: {self.contrast} and {other.contrast}; keep one gate.")
        return Needs(*(self.names | other.names), contrast=self.contrast or other.contrast)

    def __contains__(self, name: str) -> bool:
        return name in self.names


@dataclass(frozen=True, slots=True)
class Signals:
    """All that a policy knows about a step. Values are meaningful where `observed`, elsewhere neutral.

    observed    bool  [R, W]  masked positions that were scanned
    eligible    bool  [R, W]  those that may be committed now (the active block)
    first       bool  [R, W]  observed for the first time: no trajectory yet
    token       int64 [R, W]  the proposal: argmax of the base posterior, or a sample (-1 where not observed)
    confidence  float [R, W]  its probability under the base posterior
    step        int64 [R]     steps already taken in this block
    steps       int64 [R]     steps that this block may take
    measured    the signals that were asked for, by name, float [R, W] each:
        margin     probability of the top token minus that of the second
        entropy    of the posterior, in nats
        kl         divergence of the posterior from that of the previous step
        reference  probability of the proposal under the EMA reference, p_ref(x̂)
        readout    probability of the proposal under the contrast readout, q(x̂)
        noise      uniform in [0, 1), drawn from the row's own generator
    later       measures reference and readout where somebody asks: see `known`
    """

    observed: Tensor
    eligible: Tensor
    first: Tensor
    token: Tensor
    confidence: Tensor
    step: Tensor
    steps: Tensor
    measured: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType({}))
    later: Callable[[Tensor, str], Tensor] | None = None

    def __getattr__(self, name: str) -> Tensor:
        if name not in MEASURED:
            raise AttributeError(name)
        if name in self.measured:
            return self.measured[name]
        if name in CONTRASTED and self.later is not None:
            return self.later(self.observed, name)
        raise TacgError(f"The signal `{name}` was not measured: name it in the policy's `needs`.")

    def known(self, where: Tensor, *names: str) -> Signals:
        """These signals with reference and readout, or those named, measured where `where`, bool [R, W]; 0 elsewhere.

        They cost far more than the others, and few positions need them. Signals that know them everywhere stay so.
        """
        if self.later is None:
            return self
        return replace(self, measured={**self.measured, **{n: self.later(where, n) for n in names or CONTRASTED}})

    def owed(self) -> Tensor:
        """int64 [R]: how many positions to commit now so that the block ends within its steps without a rush.

        The even share of what is left, larger shares first: n0 masks over S steps give n0 // S a step and one more
        in the first n0 mod S steps, which is LLaDA's schedule. With as many steps as positions it is at most 1.
        """
        left = self.eligible.sum(dim=1)
        turns = (self.steps - self.step).clamp(min=1)
        return (left + turns - 1).div(turns, rounding_mode="floor")


class Reason(enum.IntEnum):
    """Why a position was committed."""

    NONE = 0
    BASE = 1
    EXTRA = 2
    FALLBACK = 3


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy wants: its accepted set, the promotions beyond it, and its order for everything else.

    base   bool  [R, W]  accepted by the policy's own rule
    rank   float [R, W]  larger is readier; used when a row must commit more than the policy accepted
    extra  bool  [R, W]  promoted beyond the base set (None: nothing)
    pace   int64 [R]     commits that this step should reach if need be by rank (None: `Signals.owed`)
    notes  float [R, W] values worth showing in a trace, by name: streak, support, …
    """

    base: Tensor
    rank: Tensor
    extra: Tensor | None = None
    pace: Tensor | None = None
    notes: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Commit:
    """One token leaving the masked state. `position` counts from the first generated position, `step` from 1."""

    position: int
    token: int
    step: int
    reason: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Output:
    """A decoded answer.

    tokens   the generated ids: all `gen_length` of them, or up to and with the first EOS under early stopping
    commits  every commit in the order it happened
    error    why it ended early, with finish_reason "error"; else empty
    """

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    steps: int
    forwards: int
    finish_reason: str
    policy: str
    commits: tuple[Commit, ...]
    error: str = ""

    @property
    def tpf(self) -> float:
        """Tokens per forward."""
        return len(self.tokens) / self.forwards if self.forwards else 0.0


def top(score: Tensor, among: Tensor, k: Tensor | int) -> Tensor:
    """The `k` best of each row: bool [R, W], a subset of `among`. Ties go to the lowest position.

    score float [R, W], among bool [R, W], k an int or int64 [R].
    """
    limit = k[:, None] if isinstance(k, Tensor) else k
    if not bool((among.sum(dim=1, keepdim=True) > limit).any()):
        return among  # everybody is
    if not bool((torch.as_tensor(limit) > 0).any()):
        return torch.zeros_like(among)
    score = score.clamp(min=torch.finfo(score.dtype).min)  # -inf is what the others get
    order = score.masked_fill(~among, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    width = torch.arange(score.shape[1], device=score.device)
    chosen = torch.zeros_like(among).scatter_(1, order, (width < limit).expand_as(among))
    return chosen & among
