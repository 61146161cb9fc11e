"""Events that the engine emits while it works. They are plain data; `row` is the number returned by `submit`."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tacg.engine.batch import StepResult
    from tacg.engine.row import Row
    from tacg.types import Commit, Output


@dataclass(frozen=True, slots=True)
class Started:
    """A row joined the batch.

    canvas  the answer at the start: given ids, and the mask id where something is to be written
    """

    row: int
    prompt: tuple[int, ...]
    gen_length: int
    canvas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the model currently proposes at a position, with the signals measured there."""

    position: int
    token: int
    confidence: float
    signals: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Step:
    """One denoising step of a row.

    canvas     the ids of the answer so far; positions still masked hold the mask id
    committed  what this step wrote, lowest position first, including re-masked positions (`Commit`)
    proposals  every position observed in this step (committed ones too), as it was before the commit
    settled    how many positions from the left are final
    forwards   how often the model has been called for this row so far
    """

    row: int
    step: int
    block: int
    canvas: tuple[int, ...]
    committed: tuple[Commit, ...]
    proposals: tuple[Proposal, ...]
    settled: int = 0
    forwards: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """A row left the batch."""

    row: int
    output: Output


Event = Started | Step | Finished


def step_events(rows: Sequence[Row], result: StepResult, told: Mapping[int, bool]) -> list[Event]:
    """One `Step` for each row in `told`, with its proposals if the value is true."""
    chosen = [row for row in rows if row.number in told and row.slot not in result.failed]
    proposals = _proposals(result, [row.slot for row in chosen if told[row.number]])
    return [
        Step(
            row.number, row.steps, result.blocks[row.slot], tuple(row.answer),
            tuple(result.written.get(row.slot, ())), proposals.get(row.slot, ()), row.settled,
            row.forwards,
        )
        for row in chosen
    ]  # fmt: skip


def _proposals(result: StepResult, slots: Sequence[int]) -> dict[int, tuple[Proposal, ...]]:
    """The proposals in these slots, with all their signals."""
    signals = result.signals
    shown = {**signals.measured, **result.decision.notes} if slots else {}
    boards = {name: board[slots].tolist() for name, board in shown.items()}
    found = {}
    for number, slot in enumerate(slots):
        places = signals.observed[slot].nonzero().squeeze(1).tolist()
        token, sure = signals.token[slot].tolist(), signals.confidence[slot].tolist()
        found[slot] = tuple(
            Proposal(at, token[at], sure[at], {name: float(board[number][at]) for name, board in boards.items()})
            for at in places
        )
    return found
