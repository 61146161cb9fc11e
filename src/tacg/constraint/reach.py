"""Which tokens a position may still become: those with which some completion of the whole canvas exists.

A state is reachable before a position if a path leads to it from the start through everything written on the left. It
is live after a position if a path leads from it to an accepting state through everything written on the right. A token
is possible exactly if it leads from a reachable state to a live one.

This is computed on the host, for one canvas at a time: a state has few successors, so a position takes a few
microseconds there; on a device it would take ten kernels. Only what has changed since the last step is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tacg.constraint.automaton import Automaton

AT_ONCE = 1 << 24  # maximum positions x edges in memory at once
FREE = -1  # the class of a mask


@dataclass(frozen=True, slots=True)
class Reach:
    """The reachable and live states at every position of a canvas of length L.

    kind    int64 [L]          the class of the token at each position, or FREE for a mask
    ahead   bool [L + 1, N]    states that can be reached before each position
    behind  bool [L + 1, N]    states from which an accepting state can be reached from each position on
    """

    automaton: Automaton
    kind: np.ndarray
    ahead: np.ndarray
    behind: np.ndarray

    @classmethod
    def of(cls, automaton: Automaton, tokens: np.ndarray, masked: np.ndarray, start: int) -> Reach:
        """tokens int64, masked bool [L]; start: the state before the first position."""
        kind = np.where(masked, FREE, automaton.kind[tokens])
        boards = np.zeros((2, len(kind) + 1, len(automaton.table)), dtype=bool)
        boards[0, 0, start], boards[1, -1] = True, automaton.accept
        _forward(automaton, kind, boards[0], 0)
        _backward(automaton, kind, boards[1], len(kind))
        return cls(automaton, kind, *boards)

    def where(self, places: np.ndarray, tokens: np.ndarray, free: np.ndarray | None = None) -> Reach:
        """The same canvas with these tokens at these places, int64 [P] each, and masks where `free`, bool [L].

        `behind` is valid only after `completed`; whether a canvas is possible can be told without it.
        """
        kind = self.kind.copy() if free is None else np.where(free, FREE, self.kind)
        kind[places] = self.automaton.kind[tokens]
        changed = np.flatnonzero(kind != self.kind)
        if not len(changed):
            return self
        ahead = self.ahead.copy()
        _forward(self.automaton, kind, ahead, int(changed[0]))
        return Reach(self.automaton, kind, ahead, self.behind)

    def completed(self, before: Reach) -> Reach:
        """The same with `behind` brought up to date, starting from that of `before`."""
        changed = np.flatnonzero(self.kind != before.kind)
        if not len(changed):
            return self
        behind = before.behind.copy()
        _backward(self.automaton, self.kind, behind, int(changed[-1]) + 1)
        return Reach(self.automaton, self.kind, self.ahead, behind)

    @property
    def possible(self) -> bool:
        """Whether the canvas can be completed at all."""
        return bool((self.ahead[-1] & self.automaton.accept).any())

    def allowed(self, places: np.ndarray) -> np.ndarray:
        """bool [P, C]: the classes that may be written at these places, int64 [P], given all other positions."""
        edges = self.automaton.edges
        board = np.zeros((len(places), self.automaton.table.shape[1]), dtype=bool)
        size = max(1, AT_ONCE // max(1, len(edges.source)))
        for first in range(0, len(places) if len(edges.group) else 0, size):
            part = places[first : first + size]
            passes = self.ahead[part][:, edges.source] & self.behind[part + 1][:, edges.target]
            board[first : first + size, edges.group] = np.logical_or.reduceat(passes, edges.group_at, axis=1)
        return board

    @property
    def free(self) -> np.ndarray:
        """bool [L]: where masks are."""
        return np.asarray(self.kind == FREE)

    def forced(self, allowed: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Masks with only one possible token, and that token, int64 [P] each. `allowed` [L, C] saves computing it."""
        masks = np.flatnonzero(self.free)
        allowed = self.allowed(masks) if allowed is None else allowed[masks]
        single = allowed @ self.automaton.many == 1
        return masks[single], np.where(allowed[single], self.automaton.first, 0).max(axis=1, initial=0)

    def changed(self, before: Reach) -> np.ndarray:
        """bool [L]: positions whose possible tokens may have changed."""
        ahead, behind = self.ahead != before.ahead, self.behind != before.behind
        return np.asarray(ahead[:-1].any(axis=1) | behind[1:].any(axis=1))

    def agreed(
        self, places: np.ndarray, tokens: np.ndarray, free: np.ndarray | None = None
    ) -> tuple[Reach, np.ndarray]:
        """The canvas with as many of the wanted tokens as are compatible, and which of them; the most ready come first.

        places  int64 [P], most ready first; `tokens` int64 [P] that are wanted there; `free` as for `where`

        In most steps all of them are compatible, which one check shows. Otherwise they are taken in order, leaving out
        those that contradict earlier ones; the longest prefix that fits is found by bisection.
        """
        keep = np.ones(len(places), dtype=bool)
        found = self.where(places, tokens, free)
        if found.possible:
            return found, keep
        keep[:] = False
        first, found = 0, self.where(places[:0], tokens[:0], free)
        while first < len(places):
            low, high = first, len(places)  # the first `low` fit; whether `high + 1` fit is not known
            while low < high:
                middle = (low + high + 1) // 2
                attempt = keep.copy()
                attempt[first:middle] = True
                trial = self.where(places[attempt], tokens[attempt], free)
                low, high, found = (middle, high, trial) if trial.possible else (low, middle - 1, found)
            keep[first:low] = True
            first = low + 1
        return found, keep


def _forward(automaton: Automaton, kind: np.ndarray, boards: np.ndarray, first: int) -> None:
    """Fill in the states that can be reached after each position from `first` on."""
    table, edges = automaton.columns, automaton.edges
    boards[first + 1 :] = False
    for place, group in enumerate(kind[first:].tolist(), start=first):
        here, after = boards[place], boards[place + 1]
        if group != FREE:
            after[table[group][here]] = True
            after[-1] = False  # nothing leads out of the dead state
        elif len(edges.targets):
            after[edges.targets] = np.logical_or.reduceat(here[edges.into], edges.into_at)


def _backward(automaton: Automaton, kind: np.ndarray, boards: np.ndarray, stop: int) -> None:
    """Fill in the states from which an accepting state can be reached, for each position before `stop`."""
    table, edges = automaton.columns, automaton.edges
    boards[:stop] = False
    for place, group in zip(range(stop - 1, -1, -1), kind[:stop][::-1].tolist(), strict=True):
        here, after = boards[place], boards[place + 1]
        if group != FREE:
            here[:] = after[table[group]]
        elif len(edges.sources):
            here[edges.sources] = np.logical_or.reduceat(after[edges.out], edges.out_at)
