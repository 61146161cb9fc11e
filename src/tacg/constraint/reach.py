"""Which tokens a position may still become: those with which some completion of the whole canvas exists.

A state can be reached before a position if something leads there from the start past all that is written on the left;
it is good behind a position if something leads from there to an end past all that is written on the right. A token is
possible exactly if it leads from a state of the first kind to one of the second. Both are boards over positions x
states, found by one product with a matrix for each position; nothing here asks the device a question but `agreed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.constraint.automaton import Automaton

AT_ONCE = 1 << 23  # values of positions x edges that are held at once


@dataclass(frozen=True, slots=True)
class Reach:
    """The boards of R rows that share an automaton; 1 where true, as products of matrices like it.

    ahead   float [R, L + 1, N]  states that can be reached before each position
    behind  float [R, L + 1, N]  states from which an end can be reached from each position on
    """

    automaton: Automaton
    ahead: Tensor
    behind: Tensor

    @classmethod
    def of(cls, automaton: Automaton, tokens: Tensor, masked: Tensor, length: Tensor, start: Tensor) -> Reach:
        """tokens int64, masked bool [R, L]; length int64 [R], positions of each row; start int64 [R], its state."""
        ahead = forward(automaton, tokens, masked, length, start)
        return cls(automaton, ahead, backward(automaton, tokens, masked, length))

    @property
    def possible(self) -> Tensor:
        """bool [R]: whether a row can be completed at all."""
        return ends(self.automaton, self.ahead)

    def classes(self, row: Tensor, place: Tensor) -> Tensor:
        """bool [P, C]: the classes of which a token may stand at these places, given all others; int64 [P] each."""
        source, group, target = self.automaton.edges
        size = max(1, AT_ONCE // max(1, len(source)))
        parts = []
        for start in range(0, len(row), size):
            r, p = row[start : start + size], place[start : start + size]
            passes = self.ahead[r, p][:, source] * self.behind[r, p + 1][:, target]
            parts.append(passes.new_zeros(len(r), self.automaton.table.shape[1]).index_add_(1, group, passes) > 0)
        return torch.cat(parts) if parts else torch.zeros(0, self.automaton.table.shape[1], dtype=torch.bool)

    def allowed(self, where: Tensor | None, shape: tuple[int, ...]) -> Tensor:
        """bool [R, L, C]: the same for every position, or for those where `where`, bool [R, L], only."""
        rows, length = shape
        device = self.ahead.device
        flat = torch.arange(rows * length, device=device) if where is None else where.view(-1).nonzero().squeeze(1)
        board = torch.zeros(rows * length, self.automaton.table.shape[1], dtype=torch.bool, device=device)
        board[flat] = self.classes(flat // length, flat % length)
        return board.view(rows, length, -1)

    def forced(self, allowed: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Masks that can become one token alone, bool [R, L], and that token, int64 [R, L]."""
        count = (allowed * self.automaton.many).sum(dim=2)
        return masked & (count == 1), (allowed * self.automaton.first).amax(dim=2)


def forward(automaton: Automaton, tokens: Tensor, masked: Tensor, length: Tensor, start: Tensor) -> Tensor:
    """float [R, L + 1, N]: the states that can be reached before each position."""
    rows, size = tokens.shape
    columns = automaton.table.T[automaton.kind[tokens]]  # [R, L, N]: where each state goes if the token stands there
    outside = _outside(size, length)
    state = automaton.moves.new_zeros(rows, len(automaton.table)).scatter_(1, start[:, None], 1.0)
    boards = [state]
    for place in range(size):
        free = state @ automaton.moves
        given = torch.zeros_like(state).scatter_add_(1, columns[:, place], state)
        after = torch.where(masked[:, place, None], free, given).clamp(max=1)
        after[:, -1] = 0
        state = torch.where(outside[:, place, None], state, after)
        boards.append(state)
    return torch.stack(boards, dim=1)


def backward(automaton: Automaton, tokens: Tensor, masked: Tensor, length: Tensor) -> Tensor:
    """float [R, L + 1, N]: the states from which an end can be reached, from each position on."""
    rows, size = tokens.shape
    columns = automaton.table.T[automaton.kind[tokens]]
    outside, leads = _outside(size, length), automaton.moves.T.contiguous()
    state = automaton.accept.to(automaton.moves.dtype).expand(rows, -1)
    boards = [state]
    for place in reversed(range(size)):
        free = (state @ leads).clamp(max=1)
        given = state.gather(1, columns[:, place])
        after = torch.where(masked[:, place, None], free, given)
        state = torch.where(outside[:, place, None], state, after)
        boards.append(state)
    return torch.stack(boards[::-1], dim=1)


def ends(automaton: Automaton, ahead: Tensor) -> Tensor:
    """bool [R]: whether an end can be reached."""
    return (ahead[:, -1] * automaton.accept).amax(dim=1) > 0


def agreed(
    automaton: Automaton, tokens: Tensor, masked: Tensor, length: Tensor, start: Tensor, wanted: Tensor,
    proposed: Tensor, rank: Tensor,
) -> Tensor:  # fmt: skip
    """bool [R, L]: what of `wanted` can be written together, `proposed` at each place; readier ones come first.

    tokens, masked  the canvas without these writes, which can be completed
    rank            float [R, L]; larger is readier

    All of it, in most steps, which takes one look. Otherwise each row is taken by itself: what is ready is added one
    by one, and left out where it contradicts what was added before. All beginnings of that order are tried at once.
    """
    ahead = forward(automaton, torch.where(wanted, proposed, tokens), masked & ~wanted, length, start)
    fits = ends(automaton, ahead)
    if bool(fits.all()):
        return wanted
    kept = wanted.clone()
    for row in (~fits).nonzero().squeeze(1).tolist():
        kept[row] = _agreed_in_order(
            automaton, tokens[row], masked[row], length[row], start[row], wanted[row], proposed[row], rank[row]
        )
    return kept


def _agreed_in_order(
    automaton: Automaton, tokens: Tensor, masked: Tensor, length: Tensor, start: Tensor, wanted: Tensor,
    proposed: Tensor, rank: Tensor,
) -> Tensor:  # fmt: skip
    """The same for one row; boards [L]."""
    score = torch.where(wanted, rank.clamp(min=torch.finfo(rank.dtype).min), -torch.inf)
    order = score.sort(descending=True, stable=True).indices[: int(wanted.sum())].tolist()
    kept = torch.zeros_like(wanted)
    while order:
        tries = kept.repeat(len(order), 1)
        for number, place in enumerate(order):
            tries[number:, place] = True
        count = len(order)
        ahead = forward(
            automaton, torch.where(tries, proposed, tokens), masked & ~tries, length.expand(count), start.expand(count)
        )
        fits = ends(automaton, ahead).tolist()
        good = fits.index(False) if False in fits else count
        if good:
            kept = tries[good - 1]
        order = order[good + 1 :]
    return kept


def _outside(size: int, length: Tensor) -> Tensor:
    """bool [R, L]: positions beyond the end of a row."""
    return torch.arange(size, device=length.device) >= length[:, None]
