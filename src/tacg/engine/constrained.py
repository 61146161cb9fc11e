"""Rows with constraints: which tokens each position may become, and which proposals can be written together.

This is computed on the host, which knows every canvas. For that, a step reads one more tensor (what was decided) and
uploads two (what is written, and which tokens each position may become).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

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
    from tacg.types import Branches, Decision, Signals

AT_ONCE = 1 << 19  # logits that a CPU masks in one go, so that they stay in its cache


class NextCanvas(NamedTuple):
    """A row's canvas after a write.

    reach, allowed  as in `Held`
    keep            bool  [P]  which of the wanted tokens were compatible
    only, what      int64 [F]  positions with only one possible token left, and that token
    """

    reach: Reach
    allowed: np.ndarray
    keep: np.ndarray
    only: np.ndarray
    what: np.ndarray


class Held:
    """A row with a constraint, and which tokens its positions may become.

    allowed   bool [L, C]  the allowed classes of tokens; all false where they are not needed
    revises   whether the policy may change written tokens: then `allowed` is needed at written positions, too
    branches  the possible next canvases, if the policy looks ahead
    """

    def __init__(self, row: Row, mask_id: int, *, revises: bool) -> None:
        self.row, self.revises = row, revises
        automaton = row.request.constraint
        assert automaton is not None
        self.automaton, self.holes = automaton, np.array(row.request.holes(mask_id))
        tokens = np.array(row.answer)
        self.reach = Reach.of(automaton, tokens, tokens == mask_id, row.request.start)
        self.allowed = np.zeros((len(tokens), automaton.table.shape[1]), dtype=bool)
        places = np.flatnonzero(self.holes if revises else self.reach.free)
        self.allowed[places] = self.reach.allowed(places)
        self.branches: list[NextCanvas] = []

    @property
    def ways(self) -> list[np.ndarray]:
        """`allowed` of the canvas, or of each branch."""
        return [each.allowed for each in self.branches] or [self.allowed]

    def settle(self, reason: np.ndarray, token: np.ndarray, rank: np.ndarray) -> None:
        """Write the compatible part of a decision, then every position that has only one possible token. All [L].

        Masks come before edits, so that a row always makes progress.
        """
        answer, remask = np.array(self.row.answer), reason == int(Reason.REMASK)
        wanted = np.flatnonzero((reason > 0) & ~remask)
        order = wanted[np.lexsort((-rank[wanted], ~self.reach.free[wanted]))]
        made = self._write(order, token[order], remask if remask.any() else None)
        reason[order[~made.keep]] = 0
        same = remask[made.only] & (made.what == answer[made.only])  # a forced token would be written again at once
        token[made.only], reason[made.only] = made.what, np.where(same, 0, int(Reason.FORCED))
        self.reach, self.allowed = made.reach, made.allowed

    def propose(self, commit: np.ndarray, token: np.ndarray, rank: np.ndarray) -> None:
        """The same for branches, of which the chosen one is written later. commit, token [K, L]; rank [L]."""
        self.branches = []
        for commits, tokens in zip(commit, token, strict=True):
            wanted = np.flatnonzero(commits & self.reach.free)
            order = wanted[np.argsort(-rank[wanted], kind="stable")]
            made = self._write(order, tokens[order], None)
            commits[:] = False
            commits[order[made.keep]] = commits[made.only] = True
            tokens[made.only] = made.what
            self.branches.append(made)

    def take(self, number: int) -> np.ndarray:
        """A branch was chosen; returns which of its positions the constraint forced, int64 [P]."""
        made = self.branches[number]
        self.reach, self.allowed, self.branches = made.reach, made.allowed, []
        return made.only

    def _write(self, order: np.ndarray, tokens: np.ndarray, free: np.ndarray | None) -> NextCanvas:
        """Write the compatible part of these tokens, int64 [P] each, most ready first, and all that it forces."""
        reach, keep = self.reach.agreed(order, tokens, free)
        reach = reach.completed(self.reach)
        allowed = self.allowed.copy()
        places = np.flatnonzero(reach.changed(self.reach) & (self.holes if self.revises else reach.free))
        allowed[places] = reach.allowed(places)
        only, what = reach.forced(allowed)
        if len(only):
            before, reach = reach, reach.where(only, what).completed(reach)
            # It follows from the other tokens, so the options of masks do not change. Those of written positions may.
            again = np.flatnonzero(reach.changed(before) & self.holes & self.revises)
            allowed[again] = reach.allowed(again)
        return NextCanvas(reach, allowed, keep, only, what)


class Constrained:
    """The constraints of a batch. Rows that share an automaton are masked together.

    cut     float [S, L]: the probability that constraints removed in this step; [S, K, L] until a branch is chosen
    before  float [S, L]: the same for the step that proposed the branches
    """

    def __init__(self, device: torch.device, mask_id: int, *, compact: bool, revises: bool) -> None:
        self.device, self.mask_id, self.compact, self.revises = device, mask_id, compact, revises
        self.rows: dict[int, Held] = {}  # by number
        self.groups: list[list[Held]] = []
        self.cut = self.before = torch.zeros(0, 0, device=device)

    def regroup(self, rows: Sequence[Row | None]) -> None:
        """Called after rows joined or left."""
        live = [row for row in rows if row is not None]
        self.rows = {
            row.number: self.rows.get(row.number) or Held(row, self.mask_id, revises=self.revises) for row in live
        }
        kinds: dict[int, list[Held]] = {}
        for held in self.rows.values():
            kinds.setdefault(id(held.automaton), []).append(held)
        self.groups = list(kinds.values())

    def apply(self, logits: Tensor, shape: tuple[int, int], places: Tensor | None) -> None:
        """Suppress impossible tokens in place, and record the probability that they had.

        shape   S and L; `places` int64 [P], the positions of the logits, as indices into [S * L] (None: all, of each
                branch if there are branches)
        """
        slots, length = shape
        copies = 1 if places is not None else len(logits) // (slots * length)
        flat = torch.arange(slots * copies * length, device=self.device) if places is None else places
        self.cut = torch.zeros(slots * copies * length, device=self.device)
        for group in self.groups:
            board = np.zeros((slots, copies, length, group[0].allowed.shape[1]), dtype=bool)
            for held in group:
                for copy, allowed_ in enumerate(held.ways):
                    board[held.row.slot, copy, : len(allowed_)] = allowed_
            allowed = torch.from_numpy(board).to(self.device).flatten(0, 2)
            mine = self._mine(group, flat, shape)
            kinds, at_once = group[0].automaton.kinds(self.device), self._at_once(logits)
            for part in torch.split(mine, at_once):
                here = flat[part]
                self.cut[here] = _hold(logits, part, allowed[here], kinds)
        self.cut = self.cut.view(shape) if copies == 1 else self.cut.view(slots, copies, length)

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

    def propose(self, branches: Branches, rank: Tensor) -> Branches:
        """The branches, each reduced to compatible tokens, plus the tokens that these force; rank [S, L]."""
        commit, tokens = branches.commit.cpu().numpy().copy(), branches.tokens.cpu().numpy().copy()
        counts, ranks, self.before = branches.count.tolist(), rank.nan_to_num(0.0).cpu().numpy(), self.cut
        for held in self.rows.values():
            at = held.row.slot, slice(counts[held.row.slot]), slice(len(held.allowed))
            held.propose(commit[at], tokens[at], ranks[at[::2]])
        commits, written = (torch.from_numpy(each).to(self.device) for each in (commit, tokens))
        return replace(branches, commit=commits, tokens=written)

    def take(self, chosen: Tensor, written: Tensor) -> Tensor:
        """Record the chosen branches, int64 [S]; returns `written` with FORCED where the constraint left no choice."""
        reason = written.cpu().numpy().copy()
        for held in self.rows.values():
            if held.branches:
                reason[held.row.slot, held.take(int(chosen[held.row.slot]))] = int(Reason.FORCED)
        rows, columns = self.before.shape  # a row may have joined since
        cut = self.cut[torch.arange(len(self.cut), device=self.device), chosen]
        cut[:rows, :columns] = torch.where(written[:rows, :columns] > 0, self.before, cut[:rows, :columns])
        self.cut = cut
        return torch.from_numpy(reason).to(self.device)


def _hold(logits: Tensor, rows: Tensor, allowed: Tensor, kinds: Tensor) -> Tensor:
    """Suppress tokens outside the allowed classes in these logits; returns the probability they had, float [M].

    Where no class is marked as allowed, the position was not examined, so everything is allowed there.
    """
    allowed = allowed | ~allowed.any(dim=1, keepdim=True)
    keeps, part = allowed[:, kinds], logits[rows]
    share = part.float().softmax(dim=1)
    logits[rows] = part.masked_fill(~keeps, lowest(logits.dtype))
    return (share * ~keeps).sum(dim=1).clamp(0, 1).nan_to_num(0.0)


def begin(request: Request, answer: list[int], mask_id: int) -> tuple[list[int], set[int]]:
    """The canvas with every token that the constraint forces, and the positions of these tokens.

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
        return f"The constraint {pattern} cannot be met with tokens that this model can write: no answer satisfies it."
    if least > length and not request.canvas:
        return (
            f"`gen_length` must be at least {least} for the constraint {pattern}: its shortest answer has that many "
            f"tokens; got {length}."
        )
    return f"No filling of the {length} positions of this canvas satisfies the constraint {pattern}."
