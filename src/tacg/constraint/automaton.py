"""From a regular expression over bytes to an automaton over tokens.

Tokens are longer than a byte, so the automaton over bytes is lifted: a token moves each state to where its bytes lead.
Tokens that lead to the same states form a class, so a vocabulary of a hundred thousand tokens becomes a table of states
x a few hundred classes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tacg.constraint.regex import byte_automaton

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tacg.models.base import ModelSpec
    from tacg.text import Tokenizer

KEPT = 64  # automata kept for later requests with the same constraint


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges between states by tokens that may be written, without dead ends. All int64.

    source, target  [E]  edges sorted by class; `group`: the classes that have edges, each starting at `group_at`
    into            [M]  sources of each of the `targets`, concatenated, each starting at `into_at`
    out             [M]  targets of each of the `sources`, each starting at `out_at`
    """

    source: np.ndarray
    target: np.ndarray
    group: np.ndarray
    group_at: np.ndarray
    into: np.ndarray
    targets: np.ndarray
    into_at: np.ndarray
    out: np.ndarray
    sources: np.ndarray
    out_at: np.ndarray

    @classmethod
    def of(cls, table: np.ndarray, many: np.ndarray) -> Edges:
        """From a table [N, C], whose last state is dead, and how many tokens of each class may be written."""
        dead = len(table) - 1
        group, source = np.nonzero(((table != dead) & (many > 0)).T)
        target = table[source, group]
        pairs = np.unique(np.stack([target, source]), axis=1)
        back = pairs[:, np.lexsort((pairs[0], pairs[1]))]
        return cls(
            source, target, *np.unique(group, return_index=True), pairs[1], *np.unique(pairs[0], return_index=True),
            back[0], *np.unique(back[1], return_index=True),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Automaton:
    """States x classes of tokens. The last state is dead: nothing leads out of it. All of it is on the host.

    pattern  the regular expression, for errors
    table    int64 [N, C]  the state that follows a state and a class; the dead one if the class is not possible there
    kind     int64 [V]     the class of each token
    accept   bool  [N]     states in which an answer may end
    start    the state in which it begins
    many     int64 [C]     how many tokens of a class may be written; `first` int64 [C]: one of them
    """

    pattern: str
    table: np.ndarray
    kind: np.ndarray
    accept: np.ndarray
    start: int
    many: np.ndarray
    first: np.ndarray
    edges: Edges

    @classmethod
    def of(
        cls, pattern: str, start: int, table: np.ndarray, kind: np.ndarray, accept: np.ndarray, writable: np.ndarray
    ) -> Automaton:
        """writable: bool [V]; the other tokens may be given on a canvas, but are never written."""
        classes = table.shape[1]
        many, first = np.bincount(kind[writable], minlength=classes), np.zeros(classes, dtype=np.int64)
        ids = np.flatnonzero(writable)[::-1]
        first[kind[ids]] = ids
        return cls(pattern, table, kind, accept, start, many, first, Edges.of(table, many))

    @functools.cached_property
    def columns(self) -> np.ndarray:
        """int64 [C, N]: the table, by class."""
        return np.ascontiguousarray(self.table.T)

    @functools.cached_property
    def _kinds(self) -> dict[torch.device, Tensor]:
        return {}

    def kinds(self, device: torch.device) -> Tensor:
        """The class of each token, int64 [V], on a device; copied there once."""
        if device not in self._kinds:
            self._kinds[device] = torch.from_numpy(self.kind).to(device)
        return self._kinds[device]

    def after(self, tokens: Sequence[int]) -> int:
        """The state that these tokens lead to from the start."""
        state = self.start
        for token in tokens:
            state = int(self.table[state, self.kind[token]])
        return state

    def shortest(self) -> int | None:
        """How many tokens the shortest answer has; None if there is none at all."""
        reached = np.zeros(len(self.table), dtype=bool)
        reached[self.start] = True
        for count in range(len(self.table)):
            if (reached & self.accept).any():
                return count
            reached[self.edges.target[reached[self.edges.source]]] = True
        return None


def compile_pattern(
    pattern: str, tokenizer: Tokenizer, spec: ModelSpec, suppress: Sequence[int] = (), *, holes: bool = False
) -> Automaton:
    """The automaton of answers whose text matches the pattern from beginning to end.

    holes  on a canvas, EOS in a hole leaves a position empty; otherwise it ends the answer, and only EOS follows
    """
    unwritable = frozenset({*spec.unwritable, *suppress})
    return _compiled(pattern, _Key(tokenizer, tokenizer.digest), spec.vocab_size, spec.eos_ids, unwritable, holes)


class _Key:
    """A tokenizer that compares equal to any other with the same digest."""

    def __init__(self, tokenizer: Tokenizer, digest: str) -> None:
        self.tokenizer, self.digest = tokenizer, digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.digest == other.digest


@functools.lru_cache(maxsize=8)
def _spellings(key: _Key, size: int) -> list[bytes | None]:
    """The bytes of each id; None for special tokens and unused ids."""
    found = key.tokenizer.spellings()
    return [found.get(number) for number in range(size)]


@functools.lru_cache(maxsize=KEPT)
def _compiled(
    pattern: str, key: _Key, size: int, eos: tuple[int, ...], unwritable: frozenset[int], holes: bool
) -> Automaton:
    bytes_table, accept, start = byte_automaton(pattern)
    return lift(
        pattern, bytes_table, accept, start, _spellings(key, size), eos, unwritable, holes=holes
    )  # fmt: skip


def lift(
    pattern: str, table: np.ndarray, accept: np.ndarray, start: int, spellings: Sequence[bytes | None],
    eos: Sequence[int], unwritable: frozenset[int], *, holes: bool,
) -> Automaton:  # fmt: skip
    """An automaton over tokens from one over bytes. One state is added before the dead one: the end."""
    dead = len(table) - 1
    columns, sort = _token_columns(table, spellings)
    # The end is a state of its own, which EOS leads to and stays in.
    end, grown = dead, dead + 1
    wide = np.full((len(columns) + 2, dead + 2), grown, dtype=np.int64)
    wide[:-2, :dead] = np.where(columns[:, :dead] == dead, grown, columns[:, :dead])
    here = np.arange(dead)
    if holes:
        wide[-1, :dead] = here  # EOS and given special tokens are not text
    else:
        wide[-1, :dead] = np.where(accept[:dead], end, grown)
        wide[-1, end] = end
    special = len(columns) + (1 if holes else 0)  # nothing leads out of the row before the last
    kind = np.where(sort < 0, special, sort)
    kind[list(eos)] = len(columns) + 1
    writable = np.ones(len(kind), dtype=bool)
    writable[[number for number, text in enumerate(spellings) if not text]] = False
    writable[list(eos)] = True
    writable[[each for each in unwritable if each < len(kind)]] = False
    final = np.append(accept[:dead], [True, False])
    return Automaton.of(pattern, grown if start == dead else start, wide.T, kind, final, writable)


def _token_columns(table: np.ndarray, spellings: Sequence[bytes | None]) -> tuple[np.ndarray, np.ndarray]:
    """Distinct columns int64 [C, N + 1], where each class takes each state, and the class of each token (-1: no text).

    All tokens are read at once, byte by byte. Those that have led to the same states so far and read the same byte are
    processed together, so the work depends on the number of classes, not on the vocabulary.
    """
    texts = [text or b"" for text in spellings]
    lengths = np.array([len(text) for text in texts])
    offsets, flat = np.cumsum(lengths) - lengths, np.frombuffer(b"".join(texts) + b"\0", dtype=np.uint8)
    columns = [np.arange(len(table))]
    known, sort = {columns[0].tobytes(): 0}, np.zeros(len(texts), dtype=np.int64)
    for depth in range(int(lengths.max(initial=0))):
        going = np.flatnonzero(lengths > depth)
        steps, back = np.unique(sort[going] * 256 + flat[offsets[going] + depth], return_inverse=True)
        after = np.empty(len(steps), dtype=np.int64)
        for place, step in enumerate(steps.tolist()):
            column = table[columns[step // 256], step % 256]
            after[place] = known.setdefault(column.tobytes(), len(columns))
            if after[place] == len(columns):
                columns.append(column)
        sort[going] = after[back]
    sort[lengths == 0] = -1
    used, renumbered = np.unique(sort, return_inverse=True)
    low = int(used[0] == -1)
    return np.array([columns[each] for each in used[low:]]).reshape(-1, len(table)), renumbered - low
