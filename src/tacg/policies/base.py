"""The contract of a policy.

A policy is a frozen dataclass: its fields are its knobs, `needs` names the signals it reads, and `decide` is a pure
function from signals (and its own small state) to a decision. It never sees logits, the canvas or the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from tacg.knobs import Knobs
from tacg.types import Decision, Needs, Signals

if TYPE_CHECKING:
    from torch import Tensor

TOP_P = 0.95  # as Dream is usually run
DEFAULT_BASE = "confidence"  # the policy that a wrapper wraps by default

State = dict[str, Any]  # tensors whose first axis is the row; may nest


@dataclass(frozen=True)
class Policy(Knobs):
    """Decides when proposals are committed. Subclasses are frozen dataclasses; one file per published decoder.

    name      what users type; set by the registry if the class does not set it
    frontier  its main knob and the values to plot, from fast to careful, including the default. A wrapper
              without one uses the main knob of the policy it wraps
    needs     signals beyond token and confidence that `decide` reads
    revises   whether it re-masks or edits committed positions

    The engine guarantees progress: if a policy accepts nothing, the engine commits by `Decision.rank`.
    """

    name: ClassVar[str] = ""
    frontier: ClassVar[tuple[str, tuple[Any, ...]] | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = Policy.__repr__  # type: ignore[method-assign]  # or each dataclass gets one that lists every knob

    def __repr__(self) -> str:
        return f"<policy {self.label}>"

    @property
    def revises(self) -> bool:
        """Whether it may re-mask or edit committed positions; then the text of an open block is not final."""
        return False

    @property
    def needs(self) -> Needs:
        """Nothing beyond token and confidence by default."""
        return Needs()

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """State for `rows` rows of `width` positions, tensors [rows, width, …].

        It need not be reset: where `signals.first` is true, a trajectory begins and the old state is ignored.
        """
        return {}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """What to commit now, and the state after it. Must not modify its arguments."""
        raise NotImplementedError(f"`{type(self).__name__}` must define decide(signals, state).")

    def choose(self, branches: Signals, state: State) -> Tensor:
        """Which of the branches proposed in the last step is kept, int64 [R].

        branches  signals of the alternatives, [R, K, L] each; a policy that proposes branches must define this
        """
        raise NotImplementedError(f"`{type(self).__name__}` proposes branches: it must define choose(branches, state).")

    @property
    def label(self) -> str:
        """The name with the knobs that differ from their defaults: `confidence(threshold=0.7)`."""
        defaults = {name: each.default for name, each in self.knobs().items()}
        changed = [f"{name}={value}" for name, value in self.values().items() if value != defaults[name]]
        return self.name + (f"({', '.join(changed)})" if changed else "")


@dataclass(frozen=True)
class Wrapper(Policy):
    """A policy over another policy, spelled `wrapper+base`; `wrapper` alone wraps `confidence`."""

    base: Policy

    @property
    def revises(self) -> bool:
        """Like the base policy."""
        return self.base.revises

    def choose(self, branches: Signals, state: State) -> Tensor:
        """The base policy's choice."""
        return self.base.choose(branches, state["base"])

    @property
    def label(self) -> str:
        """Like any policy's label, with the base policy's name unless it is the default."""
        plain = super().label
        _, bracket, knobs = plain.partition("(")
        name = self.name if self.base.name == DEFAULT_BASE else f"{self.name}+{self.base.name}"
        return name + bracket + knobs


def fresh(signals: Signals, values: Tensor, neutral: float) -> Tensor:
    """`values` [R, W, …] with `neutral` wherever a trajectory begins in this step."""
    first = signals.first.view(*signals.first.shape, *[1] * (values.dim() - 2))
    return values.masked_fill(first, neutral)


def dreams_pick(signals: Signals) -> Tensor:
    """float [R, W]: the ranking by which Dream's code picks a position if none is ready (temperature 0.2, top-p 0.95).

    It draws a token for each mask and takes the mask whose token is most probable. If the top token has more than
    0.95, no other can be drawn and its probability becomes 1; the first such mask is taken. Otherwise the draw decides,
    most often for the surest mask. Here the surest mask is always taken.
    """
    return torch.where(signals.sharp > TOP_P, 2.0, signals.sharp)


def opened_next(signals: Signals, ready: Tensor, share: float | Tensor) -> Tensor:
    """int64 [R]: blocks open in the next step: one more than now if at least `share` of the last one is written.

    ready  bool [R, L]  positions committed in this step
    """
    assert signals.masked is not None
    assert signals.grid is not None
    assert signals.current is not None
    assert signals.opened is not None
    assert signals.length is not None
    last = (signals.current + signals.opened - 1)[:, None]
    place = torch.arange(ready.shape[1], device=ready.device)
    inside = (signals.grid == last) & (place < signals.length[:, None])
    written = (inside & ~(signals.masked & ~ready)).sum(dim=1, keepdim=True)
    more = written >= share * inside.sum(dim=1, keepdim=True)
    return signals.opened + more[:, 0].long()
