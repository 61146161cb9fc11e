"""The scan of one step: scalars at once, the contrast on request, and then the history is updated."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tacg.errors import TacgError, unknown
from tacg.scan.compiled import kernel
from tacg.scan.histories import add_credit, looked_back, sharpened
from tacg.scan.reference import from_others, lowest, wide_dtype
from tacg.types import BY_ENGINE, CONTRASTED, LOOKING_BACK, Signals, but_not, reads_are_free

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from tacg.scan.memory import Memory
    from tacg.types import Needs

BACKENDS = ("auto", "native", "cpu", "triton", "reference")


@functools.cache
def backend_for(name: str, where: torch.device, dtype: torch.dtype, kind: str) -> Any:
    """The module that scans: as requested, or the fused kernel of this device, if it can.

    Triton keeps only the EMA of logits; a memory of hidden states is updated with plain operations. The native kernel
    keeps only that in float32.
    """
    device, wide = where.type, dtype == torch.float64
    compiles = device == "cpu" and not wide and kind == "fp32"
    if name not in BACKENDS:
        raise unknown("scan", name, BACKENDS)
    if name == "auto":
        usable = device == "cuda" and not wide and kind != "hidden" and importlib.util.find_spec("triton") is not None
        on_cpu = "native" if compiles and kernel()[0] is not None else "cpu"
        name = "triton" if usable else on_cpu if device == "cpu" else "reference"
    if name == "native" and not (compiles and kernel()[0] is not None):
        why = kernel()[1] if compiles else f"got {dtype} on {where}, memory {kind}"
        raise TacgError(f"`scan` native needs a C compiler, and logits of at most 32 bits on a CPU ({why}): use auto.")
    if name == "cpu" and device != "cpu":
        raise TacgError(f"`scan` cpu needs logits on the CPU, got {where}: use auto.")
    if name == "triton" and (wide or kind == "hidden"):
        raise TacgError(f"`scan` triton follows logits of at most 32 bits, got {dtype}, memory {kind}: use auto.")
    try:
        return importlib.import_module(f"tacg.scan.{name}")
    except ImportError as error:
        raise TacgError(f"`scan` {name} cannot run here ({error}): pip install triton, or use auto.") from None


@dataclass(frozen=True, slots=True)
class Hidden:
    """Hidden states [P, H] of some positions, and the output layer, which is linear except for suppressed tokens."""

    states: Tensor
    head: Callable[[Tensor], Tensor]
    suppressed: Tensor

    def logits(self, states: Tensor) -> Tensor:
        """[C, H] -> [C, V]."""
        made = self.head(states.to(self.states.dtype))
        made[:, self.suppressed] = lowest(made.dtype)
        return made


class StepScan:
    """The scan of logits of P positions out of [R, L].

    logits    float [N, V], any float dtype; arithmetic is in at least float32
    observed  bool [R, L], the observed positions
    seen      bool [R, L], those that have a history
    places    int64 [P], the positions that the logits belong to, as indices into [R * L]; None: all of them, in order.
              They are exactly the observed ones in order, or (`exact=False`) a fixed set that includes them
    slots     int64 [P], where each position's history is kept in `memory`; None: at `places`
    rows      int64 [P], which of the logits belong to the positions; None: all of them, in order
    hidden    the hidden states behind the logits; for a memory of hidden states

    found     token (int64), confidence (NaN where logits are unusable), peak and other requested signals, [P] each; the
              contrast only if it was computed anyway
    boards    the same where the backend writes boards, [R, L] each; `found` then has only the rest

    The contrast can be requested until `follow` is called, once the step is decided.
    """

    def __init__(
        self, logits: Tensor, needs: Needs, memory: Memory, observed: Tensor, seen: Tensor, *,
        places: Tensor | None = None, slots: Tensor | None = None, exact: bool = True, rows: Tensor | None = None,
        proposal: Tensor | None = None, hidden: Hidden | None = None, backend: str = "auto",
    ) -> None:  # fmt: skip
        self.logits, self.needs, self.memory = logits.detach() if logits.requires_grad else logits, needs, memory
        self.observed, self.exact, self.places, self.rows = observed, exact, places, rows
        self.slots = slots if slots is not None else self._everywhere() if places is None else places
        self.first_board = but_not(observed, seen)
        self.sound = False  # whether it is known that all logits are usable
        self.hidden = hidden if memory.kind == "hidden" else None
        self.made: tuple[Tensor, Tensor] | None = None  # positions int64 [C], ascending, and their past logits [C, V]
        self.backend = backend_for(backend, logits.device, logits.dtype, memory.kind)
        self.writes_boards = hasattr(self.backend, "scan_boards")
        self.fused = self.writes_boards or hasattr(self.backend, "scan")
        self.undo = _decay_to_undo(self.backend, needs, memory)
        self.boards: dict[str, Tensor] = {}
        if not len(self.slots):
            self.found = _nothing(logits, needs)
            return
        if needs.credit is not None:
            add_credit(self, needs.credit)
        if self.writes_boards:
            where = self.places, self.slots, self.first_board, observed
            self.boards, self.sound = self.backend.scan_boards(self.logits, self.rows, *where, proposal, needs, memory)
            self.found = {}
        elif self.fused:
            asked = self.slots, self.first, self.wanted, proposal, needs, memory
            self.found = self.backend.scan(self.logits, self.rows, *asked)
        else:
            self.found = self._read(proposal)
            self._mark_unusable()
        if needs.names & set(LOOKING_BACK):
            self.found |= looked_back(self)
        if "sharp" in needs:
            self.found["sharp"] = sharpened(self.logits, self.rows).masked_fill(~self.wanted, 0.0)

    @functools.cached_property
    def anew(self) -> bool:
        """Whether any trajectory begins, as far as that is known without asking a device."""
        return not reads_are_free(self.observed) or bool(self.first_board.any())

    @property
    def at_places(self) -> dict[str, Tensor]:
        """Everything that was found, [P] each."""
        return {name: self._at_places(board) for name, board in self.boards.items()} | self.found

    @property
    def first(self) -> Tensor:
        """bool [P]: which of the positions begin a trajectory."""
        return self._at_places(self.first_board)

    @property
    def wanted(self) -> Tensor:
        """bool [P]: which of the positions are observed."""
        return self._at_places(self.observed)

    def _at_places(self, board: Tensor) -> Tensor:
        flat = board.reshape(-1)
        return flat if self.places is None else flat.index_select(0, self.places)

    def _mark_unusable(self) -> None:
        """Set the confidence of positions with unusable logits to NaN."""
        peak, least = self.found["peak"], lowest(self.logits.dtype)
        if reads_are_free(peak):
            low, high = torch.aminmax(peak)
            self.sound = float(low) > least and float(high) < torch.inf  # NaN is neither
        if not self.sound:
            usable = (peak > least) & (peak < torch.inf)
            self.found["confidence"] = self.found["confidence"].masked_fill(~usable, torch.nan)

    def _everywhere(self) -> Tensor:
        return torch.arange(self.observed.numel(), device=self.observed.device)

    def picked(self) -> Tensor:
        """The logits of the positions, float [P, V]."""
        return self.logits if self.rows is None else self.logits[self.rows]

    def to_signals(self, eligible: Tensor, *, eager: bool = False, **more: Any) -> Signals:
        """The results as `Signals`, [R, L] each; `more` are further fields of `Signals`.

        Rows with unusable logits have no eligible positions. The contrast is measured where a policy requests it, or
        everywhere if `eager`.
        """
        measured = dict(self.boards)
        token, _ = measured.pop("token", None), measured.pop("peak", None)
        names = [name for name in self.found if name not in ("token", "peak")]
        if len(names) == 1:
            measured[names[0]] = self.spread(self.found[names[0]])
        elif names:
            boards = self.spread(torch.stack([self.found[name] for name in names]))
            measured |= dict(zip(names, boards.unbind(), strict=True))
        if not self.sound:
            eligible = but_not(eligible, measured["confidence"].isnan().any(dim=1, keepdim=True))
        lazy = self.needs.contrast is not None and not self.fused
        if lazy and eager:
            measured |= self._measure(self.observed, [name for name in CONTRASTED if name in self.needs])
        return Signals(
            observed=self.observed,
            eligible=eligible,
            first=self.first_board,
            token=self.spread(self.found["token"], -1) if token is None else token,
            confidence=measured.pop("confidence"),
            measured={**measured, **more.pop("measured", {})},
            measure=self._measure if lazy and not eager else None,
            **more,
        )

    def spread(self, values: Tensor, neutral: int = 0, places: Tensor | None = None) -> Tensor:
        """[…, P] -> […, R, L], with `neutral` where nothing was observed."""
        if places is None and self.places is not None and self.exact:
            board = values.new_full((*values.shape[:-1], *self.observed.shape), neutral)
            return board.masked_scatter_(self.observed, values)
        places = self.places if places is None else places
        if places is not None:
            board = values.new_full((*values.shape[:-1], self.observed.numel()), neutral)
            values = board.index_copy_(-1, places, values)
        board = values.view((*values.shape[:-1], *self.observed.shape))
        # The fused kernel already writes neutral values there.
        return board if self.exact or self.fused else torch.where(self.observed, board, neutral)

    def _measure(self, where: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """reference, readout or both at `where`, bool [R, L]; 0 elsewhere."""
        chosen = self._at_places(where).nonzero().squeeze(1)
        places = chosen if self.places is None else self.places[chosen]
        empty = self.found["confidence"][:0]
        values = self.contrast(chosen, names) if len(chosen) else dict.fromkeys(names, empty)
        return {name: self.spread(each, places=places) for name, each in values.items()}

    def _read(self, proposal: Tensor | None) -> dict[str, Tensor]:
        previous = self.memory.store("previous", self.logits) if "kl" in self.needs else None
        first = self.first if self.anew else None
        asked = (self.logits, self.rows, proposal, self.needs.names, previous, self.slots, first)
        if self.undo is None:
            found: dict[str, Tensor] = self.backend.read(*asked)
        else:
            found = self.backend.read(*asked, self.memory.store("reference", self.logits), self.undo)
            self.least = found.pop("least")
        return found

    def contrast(self, chosen: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """`reference` and `readout`, p_ref(x̂) and q(x̂), at the chosen positions (int64 [C], ascending): [C] each."""
        contrast = self.needs.contrast
        assert contrast is not None
        # At a first observation the reference equals the logits, so all three posteriors are the same.
        now = from_others(self.found["others"][chosen]) if contrast.fine else self.found["confidence"][chosen]
        first = self.first[chosen] if self.anew else None
        if first is not None and bool(first.all()):
            return dict.fromkeys(names, now)
        token, rows = self.found["token"][chosen], chosen if self.rows is None else self.rows[chosen]
        past, slots = self._past(chosen)
        undo = () if self.undo is None else (self.undo, self.least)
        found = {}
        for name in names:
            weight = 1.0 if name == "reference" else -contrast.w
            share = self.backend.contrast(self.logits, rows, past, slots, token, weight, *undo, fine=contrast.fine)
            found[name] = share if first is None else torch.where(first, now, share)
        return found

    def _past(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Where the reference logits of these positions are: a store [S, V] and its slots [C].

        From hidden states they are computed once: the readout is requested only after the reference.
        """
        if self.hidden is None:
            return self.memory.store("reference", self.logits), self.slots[chosen]
        if self.made is None or not bool(torch.isin(chosen, self.made[0]).all()):
            states = self.memory.store("reference", self.hidden.states)
            self.made = chosen, self.hidden.logits(states[self.slots[chosen]])
        return self.made[1], torch.searchsorted(self.made[0], chosen)

    @property
    def follows(self) -> bool:
        """Whether there is a history left to update once the step is decided."""
        return self.needs.contrast is not None and not self.fused and self.undo is None and len(self.slots) > 0

    def follow(self, kept: Tensor | None = None) -> None:
        """Update the history with this step, where `kept` (bool [P]; None: everywhere)."""
        self.made = None
        if not self.follows:
            return
        assert self.needs.contrast is not None
        mine = torch.arange(len(self.slots), device=self.slots.device) if kept is None else kept.nonzero().squeeze(1)
        if not len(mine):
            return
        values, offset = (self.logits, self.found["peak"][mine]) if self.hidden is None else (self.hidden.states, None)
        rows = mine if self.rows is None else self.rows[mine]
        store = self.memory.store("reference", values)
        first = self.first[mine] if self.anew else None
        self.backend.follow(store, self.slots[mine], values, rows, offset, first, self.needs.contrast.beta)


def _decay_to_undo(backend: Any, needs: Needs, memory: Memory) -> float | None:
    """The EMA's decay if the backend updates it while reading and this can be undone with small error, else None."""
    least, contrast = getattr(backend, "UNDOABLE", None), needs.contrast
    return contrast.beta if contrast and least and memory.kind == "fp32" and contrast.beta >= least else None


def _nothing(logits: Tensor, needs: Needs) -> dict[str, Tensor]:
    """The result when no position is observed."""
    empty = logits.new_zeros(0, dtype=wide_dtype(logits.dtype))
    names = (needs.names - {*BY_ENGINE}) | {"peak", "confidence"}
    return dict.fromkeys(names, empty) | {"token": empty.long()}
