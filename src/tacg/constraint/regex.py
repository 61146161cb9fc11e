"""From a regular expression, in Python's own syntax, to the smallest automaton over the bytes of its texts in UTF-8.

The libraries that we tried are slow at bounded repetitions, or expose no states that can be walked backwards
(docs/structured.md). We match whole answers, so the textbook construction is enough: Thompson's automaton, the subset
construction, and minimization.
"""

from __future__ import annotations

import functools
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_PARTS, MOST_SUBSETS, MOST_STATES = 100_000, 16_384, 4096
LAST, SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)
CATEGORIES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}

Ranges = tuple[tuple[int, int], ...]  # ranges of code points, or of bytes


def byte_automaton(pattern: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Table int64 [N + 1, 256], the last state dead; accepting states, bool [N + 1]; the state to begin with."""
    try:
        tree = re._parser.parse(pattern)  # type: ignore[attr-defined]
    except (re.error, OverflowError, RecursionError) as error:
        raise TacgError(f"The regular expression {short(pattern)} cannot be read: {error}.") from None
    if tree.state.flags & ~re.UNICODE:
        raise _refused("flags", pattern)
    parts = _Parts(pattern)
    try:
        start, end = parts.sequence(tree)
    except RecursionError:
        raise _refused("groups within groups, too many of them", pattern) from None
    table, accept = _subsets(parts, start, end)
    return _smallest(table, accept)


def short(pattern: str) -> str:
    """A pattern, shortened for a message."""
    return repr(pattern if len(pattern) <= 80 else pattern[:79] + "…")


def _refused(what: str, pattern: str) -> TacgError:
    return TacgError(
        f"The regular expression {short(pattern)} uses {what}, which is not supported; nor are look-around, "
        "back-references, inner anchors and flags."
    )


def _too_large(pattern: str) -> TacgError:
    return TacgError(
        f"The constraint {short(pattern)} needs more than {MOST_STATES} states: simplify it, or allow fewer "
        "repetitions."
    )


class _Parts:
    """Thompson's automaton: states with edges (low, high, target) for bytes, and with empty moves."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.edges: list[list[tuple[int, int, int]]] = []
        self.free: list[list[int]] = []

    def state(self) -> int:
        if len(self.edges) >= MOST_PARTS:
            raise _too_large(self.pattern)
        self.edges.append([])
        self.free.append([])
        return len(self.edges) - 1

    def sequence(self, tree: Iterable[tuple[Any, Any]]) -> tuple[int, int]:
        """Where a sequence of parts begins and ends."""
        start = end = self.state()
        for kind, value in tree:
            first, last = self._part(str(kind), value)
            self.free[end].append(first)
            end = last
        return start, end

    def _part(self, kind: str, value: Any) -> tuple[int, int]:
        match kind:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                return self._characters(_characters(kind, value, self.pattern))
            case "BRANCH":
                start, end = self.state(), self.state()
                for branch in value[1]:
                    first, last = self.sequence(branch)
                    self.free[start].append(first)
                    self.free[last].append(end)
                return start, end
            case "SUBPATTERN" if not value[1] and not value[2]:
                return self.sequence(value[3])
            case "MAX_REPEAT" | "MIN_REPEAT":
                low, high, inner = value
                return self._repeated(int(low), None if high is re._constants.MAXREPEAT else int(high), inner)  # type: ignore[attr-defined]
        raise _refused(kind.lower().replace("_", " "), self.pattern)

    def _characters(self, ranges: Ranges) -> tuple[int, int]:
        start, end = self.state(), self.state()
        steps: dict[tuple[int, tuple[int, int]], int] = {}  # characters with the same first bytes share edges
        for bytes_ in _in_utf8(ranges):
            at = start
            for each in bytes_[:-1]:
                if (at, each) not in steps:
                    steps[at, each] = self.state()
                    self.edges[at].append((*each, steps[at, each]))
                at = steps[at, each]
            self.edges[at].append((*bytes_[-1], end))
        return start, end

    def _repeated(self, low: int, high: int | None, inner: Any) -> tuple[int, int]:
        start = at = self.state()
        end = self.state()
        for _ in range(low):
            first, last = self.sequence(inner)
            self.free[at].append(first)
            at = last
        if high is None:
            first, last = self.sequence(inner)
            self.free[at].append(first)
            self.free[last].append(at)
        else:
            for _ in range(high - low):
                self.free[at].append(end)
                first, last = self.sequence(inner)
                self.free[at].append(first)
                at = last
        self.free[at].append(end)
        return start, end

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """These states and all that empty moves lead to; only states with edges, or without any move, are kept."""
        found, left = set(states), list(states)
        while left:
            for target in self.free[left.pop()]:
                if target not in found:
                    found.add(target)
                    left.append(target)
        return frozenset(each for each in found if self.edges[each] or not self.free[each])


def _characters(kind: str, value: Any, pattern: str) -> Ranges:
    """The code points that a part matches."""
    if kind == "ANY":
        return _without(((ord("\n"), ord("\n")),))
    if kind in ("LITERAL", "NOT_LITERAL"):
        return ((value, value),) if kind == "LITERAL" else _without(((value, value),))
    found: list[tuple[int, int]] = []
    negated = False
    for sort, what in value:
        name = str(sort)
        if name == "NEGATE":
            negated = True
        elif name == "LITERAL":
            found.append((what, what))
        elif name == "RANGE":
            found.append(what)
        elif name == "CATEGORY":
            category = str(what).removeprefix("CATEGORY_")
            ranges = _category(category.removeprefix("NOT_"))
            found += _without(ranges) if category.startswith("NOT_") else ranges
        else:
            raise _refused(name.lower(), pattern)
    return _without(tuple(found)) if negated else tuple(found)


@functools.cache
def _category(name: str) -> Ranges:
    """Python's classes of digits, spaces and word characters."""
    every = "".join(map(chr, range(LAST + 1)))
    return tuple((found.start(), found.end() - 1) for found in re.finditer(f"{CATEGORIES[name]}+", every))


def _without(ranges: Ranges) -> Ranges:
    """All code points but these."""
    found, start = [], 0
    for low, high in sorted(ranges):
        if start < low:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return (*found, (start, LAST)) if start <= LAST else tuple(found)


def _in_utf8(ranges: Ranges) -> Iterator[list[tuple[int, int]]]:
    """Ranges of bytes, one after another, that spell just these code points in UTF-8."""
    edges = (0, 0x80, 0x800, SURROGATES[0], SURROGATES[1] + 1, 0x10000, LAST + 1)
    for low, high in ranges:
        for start, stop in pairwise(edges):
            if start != SURROGATES[0] and max(low, start) <= min(high, stop - 1):
                yield from _alike(max(low, start), min(high, stop - 1))


def _alike(low: int, high: int) -> Iterator[list[tuple[int, int]]]:
    """The same for code points with equally many bytes: split where the inner bytes do not cover their whole range."""
    size = len(chr(low).encode())
    for place in range(1, size):
        mask = (1 << 6 * place) - 1
        if low | mask < high:
            if low & mask:
                yield from _alike(low, low | mask)
                yield from _alike((low | mask) + 1, high)
                return
            if high & mask != mask:
                yield from _alike(low, (high & ~mask) - 1)
                yield from _alike(high & ~mask, high)
                return
    yield list(zip(chr(low).encode(), chr(high).encode(), strict=True))


def _subsets(parts: _Parts, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """A deterministic automaton, which begins in state 0; the dead state is the last."""
    number = {parts.closure([start]): 0}
    rows, left = [], [*number]
    for subset in left:  # grows on the way
        edges = [edge for state in subset for edge in parts.edges[state]]
        cuts = sorted({0, 256, *(low for low, _, _ in edges), *(high + 1 for _, high, _ in edges)})
        row = np.full(256, -1, dtype=np.int64)
        seen: dict[frozenset[int], int] = {}
        for low, stop in pairwise(cuts):
            targets = frozenset(target for first, last, target in edges if first <= low <= last)
            if targets and targets not in seen:
                after = parts.closure(targets)
                if after not in number:
                    number[after] = len(number)
                    left.append(after)
                seen[targets] = number[after]
            row[low:stop] = seen.get(targets, -1)
        rows.append(row)
        if len(number) > MOST_SUBSETS:
            raise _too_large(parts.pattern)
    table = np.vstack([*rows, np.full(256, -1)])
    table[table < 0] = len(rows)
    return table, np.array([*(end in subset for subset in left), False])


def _smallest(table: np.ndarray, accept: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Merge states that no text distinguishes (Moore). States that cannot reach an end merge with the dead state."""
    columns = np.ascontiguousarray(np.unique(table, axis=1))
    label, count, known = accept.astype(np.int64), 0, 1
    while known > count:
        rows = np.ascontiguousarray(np.column_stack([label, label[columns]]), dtype=np.int32)
        whole = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
        found, label = np.unique(whole, return_inverse=True)
        count, known = known, len(found)
    _, first = np.unique(label, return_index=True)
    if len(first) > MOST_STATES:
        raise TacgError(f"A constraint must have at most {MOST_STATES} states, got {len(first)}: simplify it.")
    dead = int(label[-1])
    order = np.array([*(each for each in range(len(first)) if each != dead), dead])  # the dead state is the last
    place = np.argsort(order)
    return place[label[table[first[order]]]], accept[first[order]], int(place[label[0]])
