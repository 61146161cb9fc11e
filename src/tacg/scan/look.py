"""One step's look at the logits: scalars at once, the contrast where somebody asks for it, then history moves on."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tacg.errors import LogitsError, TacgError, unknown
from tacg.scan.reference import lowest

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from tacg.scan.memory import Memory
    from tacg.types import Needs

BACKENDS = ("auto", "cpu", "triton", "reference")


def backend_for(name: str, logits: Tensor, kind: str) -> Any:
    """The module that scans: as asked, or Triton on a GPU that has it, the plain one on other devices.

    Triton keeps the EMA of logits only; a memory of hidden states is followed with plain operations.
    """
    device, wide = logits.device.type, logits.dtype == torch.float64
    if name not in BACKENDS:
        raise unknown("scan", name, BACKENDS)
    if name == "auto":
        usable = device == "cuda" and not wide and kind != "hidden" and importlib.util.find_spec("triton") is not None
        name = "triton" if usable else "cpu" if device == "cpu" else "reference"
    if name == "cpu" and device != "cpu":
        raise TacgError(f"`scan` cpu needs logits on the CPU, got {logits.device}: use auto.")
    if name == "triton" and (wide or kind == "hidden"):
        raise TacgError(
            f"`scan` triton follows logits of at most 32 bits, got {logits.dtype}, memory {kind}: use auto."
        )
    try:
        return importlib.import_module(f"tacg.scan.{name}")
    except ImportError as error:
        raise TacgError(f"`scan` {name} cannot run here ({error}): pip install triton, or use auto.") from None


@dataclass(frozen=True, slots=True)
class Hidden:
    """The hidden states [P, H] of some positions, and what makes logits of them: linear, but for suppressed tokens."""

    states: Tensor
    head: Callable[[Tensor], Tensor]
    suppressed: Tensor

    def logits(self, states: Tensor) -> Tensor:
        """[C, H] -> [C, V]."""
        made = self.head(states.to(self.states.dtype))
        made[:, self.suppressed] = lowest(made.dtype)
        return made


class Look:
    """Logits of P positions under examination.

    logits    float [N, V], any float dtype; arithmetic is in float32 at least
    slots     int64 [P], where each position's history is kept in `memory`
    rows      int64 [P], which of the logits belong to the positions; None: all of them, in order
    hidden    what the logits were made of; for a memory of hidden states
    found     token (int64), confidence and what else was asked for, [P] each; the contrast only if it came for free
    first     bool [P], observed for the first time
    unusable  bool [P], NaN, +inf or nothing but -inf

    Call `follow` when the step is decided: until then the contrast can be asked for.
    """

    def __init__(
        self, logits: Tensor, slots: Tensor, memory: Memory, needs: Needs, proposal: Tensor | None = None,
        hidden: Hidden | None = None, backend: str = "auto", rows: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.logits, self.slots, self.memory, self.needs = logits.detach(), slots, memory, needs
        self.hidden = hidden if memory.kind == "hidden" else None
        self.rows = rows
        self.made: tuple[Tensor, Tensor] | None = None  # positions int64 [C], ascending, and their past logits [C, V]
        self.first = ~memory.seen[slots]
        self.backend = backend_for(backend, logits, memory.kind)
        self.fused = hasattr(self.backend, "scan")
        self.undo = _decay_to_undo(self.backend, needs, memory)
        if not len(slots):
            self.found = _nothing(logits, needs)
        elif self.fused:
            picked = self.logits if rows is None else self.logits[rows]
            self.found = self.backend.scan(picked, slots, self.first, proposal, needs, memory)
        else:
            self.found = self._read(proposal)
        self.peak: Tensor = self.found.pop("peak")
        self.unusable = ~((self.peak > lowest(logits.dtype)) & (self.peak < torch.inf))  # NaN is neither

    def _read(self, proposal: Tensor | None) -> dict[str, Tensor]:
        previous = self.memory.store("previous", self.logits) if "kl" in self.needs else None
        asked = (self.logits, self.rows, proposal, self.needs.names, previous, self.slots, self.first)
        if self.undo is None:
            found: dict[str, Tensor] = self.backend.read(*asked)
        else:
            found = self.backend.read(*asked, self.memory.store("reference", self.logits), self.undo)
        return found

    def refuse_unusable(self) -> None:
        """Raise if there are unusable logits, naming row and position."""
        if not bool(self.unusable.any()):
            return
        width = self.memory.width
        bad = [(slot // width, slot % width) for slot in self.slots[self.unusable].tolist()]
        value = float(self.peak[self.unusable][0])
        what = "only -inf" if value <= lowest(self.logits.dtype) else str(value)
        raise LogitsError(
            f"Logits of row {bad[0][0]}, position {bad[0][1]} hold {what} ({len(bad)} such position(s) in this step). "
            "Every masked position needs at least one finite logit and no NaN or +inf: check the model's dtype "
            "and the suppressed ids.",
            bad,
        )

    def only(self, kept: Tensor) -> None:
        """Go on with some of the positions, bool [P]: the rows of the others have left."""
        rows = kept.nonzero().squeeze(1)
        self.rows = rows if self.rows is None else self.rows[rows]
        self.slots, self.first, self.peak, self.unusable = (
            each[rows] for each in (self.slots, self.first, self.peak, self.unusable)
        )
        self.found = {name: values[rows] for name, values in self.found.items()}

    def contrast(self, chosen: Tensor, name: str) -> Tensor:
        """`reference` or `readout`, p_ref(x̂) or q(x̂), at the chosen positions (int64 [C], ascending): [C]."""
        contrast = self.needs.contrast
        assert contrast is not None
        token, rows = self.found["token"][chosen], chosen if self.rows is None else self.rows[chosen]
        past, slots = self._past(chosen)
        undo = () if self.undo is None else (self.undo,)
        weight = 1.0 if name == "reference" else -contrast.w
        found = self.backend.contrast(self.logits, rows, past, slots, token, weight, *undo)
        # At a first observation the reference is the logits themselves: all three posteriors are one.
        return torch.where(self.first[chosen], self.found["confidence"][chosen], found)

    def _past(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Where the reference's logits of these positions are: a store [S, V] and slots of it [C].

        Of hidden states they are made, once: who asks for the readout has asked for the reference before.
        """
        if self.hidden is None:
            return self.memory.store("reference", self.logits), self.slots[chosen]
        if self.made is None or not bool(torch.isin(chosen, self.made[0]).all()):
            states = self.memory.store("reference", self.hidden.states)
            self.made = chosen, self.hidden.logits(states[self.slots[chosen]])
        return self.made[1], torch.searchsorted(self.made[0], chosen)

    def follow(self, kept: Tensor | None = None, among: Tensor | None = None) -> None:
        """Move the history on by one step, where `kept` (bool [P]); all else (of the slots `among`) is forgotten."""
        self.made = None
        mine = None if kept is None else kept.nonzero().squeeze(1)
        slots = self.slots if mine is None else self.slots[mine]
        if self.needs.contrast is not None and len(slots) and not self.fused and self.undo is None:
            rows = torch.arange(len(self.slots), device=slots.device) if self.rows is None else self.rows
            first, peak = (x if mine is None else x[mine] for x in (self.first, self.peak))
            values, offset = (self.logits, peak) if self.hidden is None else (self.hidden.states, None)
            store = self.memory.store("reference", values)
            rows = rows if mine is None else rows[mine]
            self.backend.follow(store, slots, values, rows, offset, first, self.needs.contrast.beta)
        self.memory.saw(slots, among, None if self.undo is None else self.slots)


def _decay_to_undo(backend: Any, needs: Needs, memory: Memory) -> float | None:
    """The EMA's decay if the backend follows while it reads and the step can be undone with small error, else None."""
    least: float = getattr(backend, "UNDOABLE", torch.inf)
    contrast = needs.contrast
    return contrast.beta if contrast is not None and memory.kind == "fp32" and contrast.beta >= least else None


def _nothing(logits: Tensor, needs: Needs) -> dict[str, Tensor]:
    """What is read when no position is observed."""
    empty = logits.new_zeros(0, dtype=torch.promote_types(logits.dtype, torch.float32))
    names = (needs.names - {"noise"}) | {"peak", "confidence"}
    return dict.fromkeys(names, empty) | {"token": empty.long()}
