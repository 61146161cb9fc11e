"""A request being decoded, as the host sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tacg.types import Commit, Output

if TYPE_CHECKING:
    from tacg.cache import Cache
    from tacg.engine.request import Request
    from tacg.models.base import ModelSpec


@dataclass(slots=True)
class Row:
    """A request being decoded. `steps` counts decisions, `forwards` model calls, `positions` what they computed.

    answer      the ids of the answer so far; the mask id where nothing is written yet
    blocks      (start, stop, steps) of each block
    block       the active block; `block_step`: steps taken in it; `open`: blocks open from it on
    settled     how many positions of the answer, from the left, are final
    reach       positions of the answer that the next forward computes; None: all
    branches    canvases forwarded in the next step: 1, or as many as the policy has proposed
    cache       the row's keys and values, if kept; those up to `cached` never change
    auxiliary   calls of the verifier, which computed `auxiliary_positions`; `draft_cache` holds its keys and values of
                the draft, up to `drafted`
    bytes       memory that it takes, as estimated
    again       it was started before, and made room for others when memory ran out
    forced      positions where the constraint left no choice; `cut`: the probability it removed elsewhere
    """

    number: int
    request: Request
    answer: list[int]
    blocks: tuple[tuple[int, int, int], ...]
    slot: int = -1
    bytes: int = 0
    again: bool = False
    steps: int = 0
    forwards: int = 0
    positions: int = 0
    block: int = 0
    block_step: int = 0
    open: int = 1
    settled: int = 0
    reach: int | None = None
    branches: int = 1
    done: bool = False
    commits: list[Commit] = field(default_factory=list)
    cache: Cache | None = None
    cached: int = 0
    auxiliary: int = 0
    auxiliary_positions: int = 0
    draft_cache: Cache | None = None
    drafted: int = 0
    forced: set[int] = field(default_factory=set)
    cut: dict[int, float] = field(default_factory=dict)

    def move(self, told: dict[str, int], spec: ModelSpec, *, revises: bool) -> None:
        """Update the row after a step, from its answer and the scalars of its report.

        revises  whether the policy may change committed positions in open blocks
        """
        first_mask, length = self._first_mask(spec.mask_id), len(self.answer)
        over = first_mask == length or (self.request.decode.early_stop and self._first_eos(spec.eos_ids) < first_mask)
        self.steps += 1
        self.done = over and not told.get("stay")
        self.block, self.block_step, self.open = told["block"], told["step"], told.get("open", 1)
        self.branches = max(1, told.get("branches", 0))
        self.reach = told["reach"] if told.get("reach", length) < length else None
        self.settled = min(first_mask, self.blocks[self.block][0]) if revises and not self.done else first_mask

    def output(self, mask_id: int, eos_ids: tuple[int, ...], finish_reason: str = "", error: str = "") -> Output:
        """The row's output. Without a finish reason, the answer decides: eos or length."""
        end, hole, length = self._first_eos(eos_ids), self._first_mask(mask_id), len(self.answer)
        tokens = self.answer[: end + 1 if self.request.decode.early_stop and end < hole else hole]
        cut = [share for place, share in self.cut.items() if place < len(tokens) and place not in self.forced]
        whole = end < length or (self.request.constraint is not None and hole == length)
        return Output(
            text="",
            tokens=tuple(tokens),
            prompt_tokens=len(self.request.prompt),
            steps=self.steps,
            forwards=self.forwards,
            finish_reason=finish_reason or ("eos" if whole else "length"),
            policy=self.request.policy.label,
            commits=tuple(self.commits),
            error=error,
            positions=self.positions,
            auxiliary=self.auxiliary,
            auxiliary_positions=self.auxiliary_positions,
            given=sum(token != mask_id for token in self.request.canvas[: len(tokens)]),
            forced=sum(place < len(tokens) for place in self.forced),
            cut=sum(cut) / len(cut) if cut else 0.0,
        )

    def _first_mask(self, mask_id: int) -> int:
        return self.answer.index(mask_id) if mask_id in self.answer else len(self.answer)

    def _first_eos(self, eos_ids: tuple[int, ...]) -> int:
        """The first EOS that was not given with the canvas; the answer's length if there is none, as for masks."""
        if any(eos in self.answer for eos in eos_ids):
            given = self.request.canvas
            for place, token in enumerate(self.answer):
                if token in eos_ids and not (given and given[place] == token):
                    return place
        return len(self.answer)
