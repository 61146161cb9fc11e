"""What the engine tells while it works. Every event is plain data; `row` is the number that `submit` gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tacg.types import Commit, Output


@dataclass(frozen=True, slots=True)
class Started:
    """A row joined the batch."""

    row: int
    prompt: tuple[int, ...]
    gen_length: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a position that is still masked would say now, with the signals measured there."""

    position: int
    token: int
    confidence: float
    signals: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Step:
    """One denoising step of a row.

    canvas     generated ids so far; positions still masked hold the mask id
    committed  what this step wrote, lowest position first
    proposals  every position observed in this step (committed ones too), as it was before the commit
    """

    row: int
    step: int
    block: int
    canvas: tuple[int, ...]
    committed: tuple[Commit, ...]
    proposals: tuple[Proposal, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """A row left the batch."""

    row: int
    output: Output


Event = Started | Step | Finished
