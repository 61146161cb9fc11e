"""Rows whose answers must look like something: what their positions may become, and what is written together.

What a canvas may become is found on the host, which knows every canvas. A step reads one board more for that, what was
decided, and uploads two: what is written of it, and what each position may become.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tacg.constraint.reach import Reach
from tacg.constraint.regex import short
from tacg.engine.commits import resolve_commits
from tacg.errors import TacgError
from tacg.scan import lowest
from tacg.types import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tacg.constraint import Automaton
    from tacg.engine.request import Request
    from tacg.engine.row import Row
    from tacg.types import Decision, Signals

AT_ONCE = 1 << 19  # logits that a CPU masks at once: they stay in its cache


class Held:
    """A row that is held to a constraint: its boards, and what its positions may become.

    allowed  bool [L, C]  the classes of tokens; none at all where nobody asks
    revises  whether the policy may change what is written: what a written position may become counts as well
    """

    def __init__(self, row: Row, mask_id: int, *, revises: bool) -> None:
        self.row, self.mask_id, self.revises = row, mask_id, revises
        automaton = row.request.constraint
        assert automaton is not None
        self.automaton, self.holes = automaton, np.array(row.request.holes(mask_id))
        tokens = np.array(row.answer)
        self.reach = Reach.of(automaton, tokens, tokens == mask_id, row.request.start)
        self.allowed = np.zeros((len(tokens), automaton.table.shape[1]), dtype=bool)
        self._look(self.reach, np.ones(len(tokens), dtype=bool))

    def settle(self, reason: np.ndarray, token: np.ndarray, rank: np.ndarray) -> None:
        """Of what was decided, keep what can stand together; then write what can only be one token. All [L].

        Masks come before edits, so that a row always gets ahead.
        """
        answer = np.array(self.row.answer)
        masked, remask = answer == self.mask_id, reason == int(Reason.REMASK)
        wanted = np.flatnonzero((reason > 0) & ~remask)
        order = wanted[np.lexsort((-rank[wanted], ~masked[wanted]))]
        reach, keep = self.reach.agreed(order, token[order], remask if remask.any() else None)
        reason[order[~keep]] = 0
        before, after = self.reach, reach.completed(self.reach)
        self._look(after, after.changed(before))
        only, what = after.forced(self.allowed)
        same = remask[only] & (what == answer[only])  # it would be written again at once
        token[only], reason[only] = what, np.where(same, 0, int(Reason.FORCED))
        if len(only):  # what is forced changes no board but its own
            self._look(after.where(only, what).completed(after), np.zeros(len(masked), dtype=bool))

    def _look(self, reach: Reach, changed: np.ndarray) -> None:
        """Find what positions may become, where that has changed."""
        places = np.flatnonzero(changed & (self.holes if self.revises else reach.free))
        self.reach = reach
        self.allowed[places] = reach.allowed(places)


class Constrained:
    """The constraints of a batch. Rows that share an automaton are masked together; unlike rows go side by side.

    cut  float [S, L]: the probability that constraints took away in this step
    """

    def __init__(self, device: torch.device, mask_id: int, *, compact: bool, revises: bool) -> None:
        self.device, self.mask_id, self.compact, self.revises = device, mask_id, compact, revises
        self.rows: dict[int, Held] = {}  # by number
        self.groups: list[list[Held]] = []
        self.cut = torch.zeros(0, 0, device=device)

    def regroup(self, rows: Sequence[Row | None]) -> None:
        """Rows have come or gone."""
        live = [row for row in rows if row is not None]
        self.rows = {
            row.number: self.rows.get(row.number) or Held(row, self.mask_id, revises=self.revises) for row in live
        }
        kinds: dict[int, list[Held]] = {}
        for held in self.rows.values():
            kinds.setdefault(id(held.automaton), []).append(held)
        self.groups = list(kinds.values())

    def apply(self, logits: Tensor, shape: tuple[int, int], places: Tensor | None) -> None:
        """Suppress, in place, all that no answer can have, and note what probability it had.

        shape   S and L of the boards; `places` int64 [P], the positions of the logits, as indices into them (None: all)
        """
        slots, length = shape
        flat = torch.arange(slots * length, device=self.device) if places is None else places
        self.cut = torch.zeros(slots * length, device=self.device)
        for group in self.groups:
            board = np.zeros((slots, length, group[0].allowed.shape[1]), dtype=bool)
            for held in group:
                board[held.row.slot, : len(held.allowed)] = held.allowed
            allowed = torch.from_numpy(board).to(self.device).flatten(0, 1)
            mine = self._mine(group, flat, shape)
            kinds, at_once = group[0].automaton.kinds(self.device), self._at_once(logits)
            for part in torch.split(mine, at_once):
                here = flat[part]
                self.cut[here] = _hold(logits, part, allowed[here], kinds)
        self.cut = self.cut.view(shape)

    def _at_once(self, logits: Tensor) -> int:
        """How many positions are masked together: all on a device, few on a CPU."""
        return max(1, AT_ONCE // logits.shape[1]) if self.device.type == "cpu" else len(logits)

    def _mine(self, group: list[Held], flat: Tensor, shape: tuple[int, int]) -> Tensor:
        """int64 [M]: which of the logits belong to rows of this group."""
        slots = torch.tensor([held.row.slot for held in group], device=self.device)
        if self.compact:
            return torch.isin(flat // shape[1], slots).nonzero().squeeze(1)
        return torch.arange(len(flat), device=self.device).view(shape[0], -1)[slots].flatten()

    def settle(self, signals: Signals, decision: Decision) -> tuple[Tensor, Tensor]:
        """What is written and why, int64 [S, L] of `Reason`, and with which tokens, int64 [S, L]."""
        rank = decision.rank.double().nan_to_num(0.0)
        wanted = torch.stack([resolve_commits(signals, decision), signals.token, rank.view(torch.int64)]).cpu().numpy()
        reason, token, ranks = wanted[0], wanted[1], wanted[2].view("float64")
        for held in self.rows.values():
            at = held.row.slot, slice(len(held.row.answer))
            held.settle(reason[at], token[at], ranks[at])
        made = torch.from_numpy(wanted[:2]).to(self.device)
        return made[0], made[1]


def _hold(logits: Tensor, rows: Tensor, allowed: Tensor, kinds: Tensor) -> Tensor:
    """Suppress in these rows of the logits what is not of an allowed class; the probability that it had, float [M].

    A position of which nothing is known is not in view: everything is allowed there.
    """
    allowed = allowed | ~allowed.any(dim=1, keepdim=True)
    keeps, part = allowed[:, kinds], logits[rows]
    share = part.float().softmax(dim=1)
    logits[rows] = part.masked_fill(~keeps, lowest(logits.dtype))
    return (share * ~keeps).sum(dim=1).clamp(0, 1).nan_to_num(0.0)


def begin(request: Request, answer: list[int], mask_id: int) -> tuple[list[int], set[int]]:
    """The canvas with all that the constraint leaves no choice about, and which positions these are.

    Raises if no answer of this length satisfies the constraint.
    """
    automaton = request.constraint
    if automaton is None:
        return answer, set()
    tokens = np.array(answer)
    reach = Reach.of(automaton, tokens, tokens == mask_id, request.start)
    if not reach.possible:
        raise TacgError(_why(automaton, request, len(answer)))
    only, what = reach.forced()
    tokens[only] = what
    return tokens.tolist(), {*only.tolist()}


def _why(automaton: Automaton, request: Request, length: int) -> str:
    least, pattern = automaton.shortest(), short(automaton.pattern)
    if least is None:
        return f"The constraint {pattern} cannot be met with tokens that this model writes: no answer satisfies it."
    if least > length and not request.canvas:
        return (
            f"`gen_length` must be at least {least} for the constraint {pattern}, whose shortest answer has so many "
            f"tokens; got {length}."
        )
    return f"No filling of the {length} positions of this canvas satisfies the constraint {pattern}."
