"""Rows whose answers must look like something: what their positions may become, and what is written together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tacg.constraint.reach import Reach, agreed
from tacg.constraint.regex import short
from tacg.engine.commits import resolve_commits
from tacg.errors import TacgError
from tacg.scan import lowest
from tacg.types import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tacg.constraint import Automaton
    from tacg.engine.advance import Boards
    from tacg.engine.request import Request
    from tacg.engine.row import Row
    from tacg.types import Decision, Signals


@dataclass(slots=True)
class Group:
    """Rows of a batch that share an automaton.

    slots    int64 [R]        where they are; `start` int64 [R]: the state in which each begins
    allowed  bool [R, L, C]   the classes of tokens that each position may become
    """

    automaton: Automaton
    slots: Tensor
    start: Tensor
    allowed: Tensor | None = None


class Constrained:
    """The constraints of a batch: one group for each automaton, so that unlike rows go side by side.

    revises  whether the policy may change what is written: what a written position may become counts as well
    """

    def __init__(self, device: torch.device, *, compact: bool, revises: bool) -> None:
        self.device, self.compact, self.revises = device, compact, revises
        self.groups: list[Group] = []
        self.stale = True
        self.cut = torch.zeros(0, 0, device=device)

    def regroup(self, rows: Sequence[Row | None]) -> None:
        """Rows have come or gone."""
        kinds: dict[int, list[Row]] = {}
        for row in rows:
            if row is not None:
                assert row.request.constraint is not None
                kinds.setdefault(id(row.request.constraint), []).append(row)
        self.groups = []
        for members in kinds.values():
            automaton = members[0].request.constraint
            assert automaton is not None
            table = torch.tensor([[row.slot, row.request.start] for row in members], device=self.device)
            self.groups.append(Group(automaton.to(self.device), table[:, 0], table[:, 1]))
        self.stale = True

    def apply(self, logits: Tensor, boards: Boards, answer: Tensor, places: Tensor | None) -> None:
        """Suppress, in place, all that no answer can have; `cut` float [S, L] is the probability that it had.

        places  int64 [P], the positions of the logits, as indices into [S * L] (None: all)
        """
        rows, length = answer.shape
        if self.stale:
            for group in self.groups:
                at = group.slots
                self._look(group, answer[at], boards.masked[at], boards.length[at])
            self.stale = False
        flat = torch.arange(rows * length, device=self.device) if places is None else places
        self.cut = torch.zeros(rows * length, device=self.device)
        seat = torch.zeros(rows, dtype=torch.int64, device=self.device)
        for group in self.groups:
            assert group.allowed is not None
            seat[group.slots] = torch.arange(len(group.slots), device=self.device)
            mine = self._mine(group, flat, length, rows)
            slot = flat[mine] // length
            classes = group.allowed[seat[slot], flat[mine] - slot * length]
            classes = classes | ~classes.any(dim=1, keepdim=True)  # not in view
            part = logits if len(mine) == len(logits) else logits[mine]
            before = part.float().logsumexp(dim=1)
            part.masked_fill_(~classes[:, group.automaton.kind], lowest(logits.dtype))
            self.cut[flat[mine]] = (1 - (part.float().logsumexp(dim=1) - before).exp()).clamp(0, 1).nan_to_num(0.0)
            if part is not logits:
                logits.index_copy_(0, mine, part)
        self.cut = self.cut.view(rows, length)

    def _mine(self, group: Group, flat: Tensor, length: int, rows: int) -> Tensor:
        """int64 [M]: which of the logits belong to rows of this group."""
        if self.compact:
            return torch.isin(flat // length, group.slots).nonzero().squeeze(1)
        return torch.arange(len(flat), device=self.device).view(rows, -1)[group.slots].flatten()

    def settle(
        self, boards: Boards, answer: Tensor, signals: Signals, decision: Decision, mask_id: int
    ) -> tuple[Tensor, Tensor]:
        """What is written and why, int64 [S, L] of `Reason`, and with which tokens, int64 [S, L].

        Of what was decided, as much as can stand together; what contradicts something readier stays as it is. Then
        what can only be one token is that token.
        """
        reason, token = resolve_commits(signals, decision), signals.token.clone()
        remask = reason == int(Reason.REMASK)
        masked, canvas = boards.masked | remask, torch.where(remask, mask_id, answer)
        wanted = (reason > 0) & ~remask
        # Masks come before edits, so that a row always gets ahead.
        rank = torch.where(boards.masked, decision.rank.double().clamp(-1e30, 1e30), -1e300)
        for group in self.groups:
            at = group.slots
            here, open_, length, new, want = canvas[at], masked[at], boards.length[at], token[at], wanted[at]
            kept = agreed(group.automaton, here, open_, length, group.start, want, new, rank[at])
            only, what = self._look(group, torch.where(kept, new, here), open_ & ~kept, length)
            token[at] = torch.where(only, what, new)
            why = reason[at].masked_fill(want & ~kept, 0).masked_fill(only, int(Reason.FORCED))
            reason[at] = why.masked_fill(only & remask[at], 0)  # it would be written again at once
        return reason, token

    def _look(self, group: Group, answer: Tensor, masked: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Find what the positions of a group may become; masks that may become one token alone, and that token."""
        reach = Reach.of(group.automaton, answer, masked, length, group.start)
        where = None if self.revises or not self.compact else masked
        group.allowed = reach.allowed(where, masked.shape)
        return reach.forced(group.allowed, masked)


def begin(request: Request, answer: list[int], mask_id: int) -> tuple[list[int], set[int]]:
    """The canvas with all that the constraint leaves no choice about, and which positions these are.

    Raises if no answer of this length satisfies the constraint.
    """
    automaton = request.constraint
    if automaton is None:
        return answer, set()
    tokens, length = torch.tensor([answer]), torch.tensor([len(answer)])
    masked = tokens == mask_id
    reach = Reach.of(automaton, tokens, masked, length, torch.tensor([request.start]))
    if not bool(reach.possible):
        raise TacgError(_why(automaton, request, len(answer)))
    only, what = reach.forced(reach.allowed(masked, masked.shape), masked)
    return torch.where(only, what, tokens)[0].tolist(), {*only[0].nonzero().squeeze(1).tolist()}


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
