"""A lane: the rows of a batch that are decoded with the same policy and settings, side by side.

Everything that belongs to such rows is here: their canvas, the scan's memory, the policy's state. Rows keep their
slot for life; a free slot is taken by the next row. Each row has its own block and step, so none waits for another.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from tacg.cache import Cache, block_edge, resolve_mode, window
from tacg.engine.events import Proposal, Step
from tacg.engine.progress import REASONS, reasons
from tacg.engine.sampling import propose
from tacg.models.base import Span
from tacg.policies.state import joined, restart
from tacg.scan import Hidden, Look, Memory, lowest, observe
from tacg.types import Commit, Decision, Output, Signals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Generator, Tensor

    from tacg.engine.request import Decode, Request
    from tacg.models.base import ModelSpec
    from tacg.policies import Policy, State


@dataclass(slots=True)
class Row:
    """One request on its way. `steps` counts decisions, `forwards` model calls.

    block, turn, left  the block it is in, the steps taken there, and the positions still masked there
    end                the first position that was committed to an end-of-text token
    cache              the row's keys and values, if any are kept; up to `settled` they will never change
    """

    number: int
    request: Request
    prompt: Tensor
    generator: Generator
    slot: int = -1
    steps: int = 0
    forwards: int = 0
    block: int = 0
    turn: int = 0
    left: int = 0
    end: int | None = None
    commits: list[Commit] = field(default_factory=list)
    cache: Cache | None = None
    settled: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """What a lane looks at: columns int64 [S, W] of the answer, and which of them are in a row's block, bool [S, W].

    steps int64 [S]: how many its block may take.
    """

    columns: Tensor
    active: Tensor
    steps: Tensor


class Lane:
    """Canvas, memory and state of S slots; an answer has G positions, a window W of them, the longest prompt M tokens.

    canvas  int64 [S, M + G]  prompts, aligned to the right, and answers; masked positions hold the mask id
    masked  bool  [S, G]      still to be committed (all false in a free slot)
    step    int64 [S]         steps that each row has taken in its block
    """

    def __init__(
        self, policy: Policy, decode: Decode, offset: int, spec: ModelSpec, device: torch.device, max_rows: int
    ) -> None:
        self.policy, self.decode, self.spec, self.device, self.max_rows = policy, decode, spec, device, max_rows
        self.mode = resolve_mode(decode.cache, decode.observe, spec)
        self.rows: list[Row | None] = []
        self.blocks = decode.blocks(offset)
        self.width = (
            decode.gen_length if decode.observe == "sequence" else max(stop - start for start, stop, _ in self.blocks)
        )
        self.hidden_ids = torch.tensor(sorted({*spec.unwritable, *decode.suppress}), dtype=torch.int64, device=device)
        self.memory = Memory(0, self.width, device, decode.memory)
        self.state: State = policy.start(0, self.width, device)
        self.canvas = torch.zeros(0, decode.gen_length, dtype=torch.int64, device=device)
        self.masked = self.canvas.bool()
        self.step = self.canvas.new_zeros(0)
        self.view: View | None = None  # made anew when a row moves

    # -- rows come and go ------------------------------------------------------------------------------------------

    def join(self, row: Row) -> None:
        """Give the row a slot with a fully masked answer."""
        if None not in self.rows:
            self._grow(min(max(1, 2 * len(self.rows)), self.max_rows))
        slot = row.slot = self.rows.index(None)
        self.rows[slot] = row
        row.cache = Cache(self._length(row)) if self.mode != "none" else None
        restart(self.state, slot, self.policy.start(1, self.width, self.device))
        missing = len(row.prompt) + self.decode.gen_length - self.canvas.shape[1]
        if missing > 0:
            self.canvas = F.pad(self.canvas, (missing, 0))
        self.canvas[slot, -self.decode.gen_length :] = self.spec.mask_id
        self.canvas[slot, self._start(row) : -self.decode.gen_length] = row.prompt
        self.masked[slot] = True
        self._enter(row, 0)

    def leave(self, row: Row, finish_reason: str = "", error: str = "") -> Output:
        """Free the row's slot and say what came of it. Without a reason the answer itself gives it: eos or length."""
        output = self._output(row, finish_reason, error)
        self.rows[row.slot] = row.cache = None
        self.masked[row.slot] = False
        return output

    def live(self) -> list[Row]:
        """The rows in this lane, by slot."""
        return [row for row in self.rows if row is not None]

    def _grow(self, slots: int) -> None:
        more = slots - len(self.rows)
        self.rows += [None] * more
        self.memory.grow(slots)
        self.state = joined(self.state, self.policy.start(more, self.width, self.device))
        for name in ("canvas", "masked", "step"):
            board = getattr(self, name)
            setattr(self, name, torch.cat([board, board.new_zeros(more, *board.shape[1:])]))

    def _enter(self, row: Row, block: int) -> None:
        """Begin a block."""
        start, stop, _ = self.blocks[block]
        row.block, row.turn, row.left = block, 0, stop - start
        self.step[row.slot] = 0
        self.view = None
        if self.decode.observe == "block" or block == 0:
            self.memory.forget(row.slot)

    # -- one step --------------------------------------------------------------------------------------------------

    def window(self) -> tuple[Tensor, Tensor, Tensor]:
        """Columns in view int64 [S, W]; those observed and those eligible, bool [S, W]."""
        view = self.view = self.view or self._look_around()
        masked = self.masked.gather(1, view.columns)
        eligible = masked & view.active
        return view.columns, masked if self.decode.observe == "sequence" else eligible, eligible

    def _look_around(self) -> View:
        blocks = [self.blocks[row.block if row else 0] for row in self.rows]
        start, stop, steps = torch.tensor(blocks, device=self.device).unbind(dim=1)
        columns = torch.arange(self.width, device=self.device).expand(len(blocks), -1)
        if self.decode.observe == "block":
            columns = columns + start[:, None]
        active = (columns >= start[:, None]) & (columns < stop[:, None])
        return View(columns.clamp(max=self.decode.gen_length - 1), active, steps)

    def span(self, row: Row) -> Span:
        """The part of the row that this step computes."""
        start, stop = (len(row.prompt) + edge for edge in self.blocks[row.block][:2])
        first, length = row.turn == 0, self._length(row)
        return Span(
            *window(self.mode, self.spec, start, stop, length, first=first, settled=row.settled), cache=row.cache
        )

    def computed(self, row: Row) -> None:
        """The model has computed the row's span."""
        row.forwards += 1
        if self.spec.block is not None:  # what is before this block is complete, and was computed again just now
            row.settled = (len(row.prompt) + self.blocks[row.block][0]) // self.spec.block * self.spec.block

    def tokens(self, row: Row, span: Span) -> Tensor:
        """The span's part of the canvas, int64 [span]; masks beyond its end."""
        start = self._start(row)
        part = self.canvas[row.slot, start + span.start : start + span.stop]
        return F.pad(part, (0, len(span) - len(part)), value=self.spec.mask_id)

    def _length(self, row: Row) -> int:
        """Prompt and answer; for block-causal models up to the end of the last block, which they know only whole."""
        length = len(row.prompt) + self.decode.gen_length
        return length if self.spec.block is None else block_edge(length, self.spec.block)

    def _start(self, row: Row) -> int:
        """Where the row's prompt begins on the canvas."""
        return self.canvas.shape[1] - self.decode.gen_length - len(row.prompt)

    def draw(self, logits: Tensor, observed: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """This step's random numbers, row by row: sampled proposals int64 [P] and noise [S, W], as far as needed."""
        logits[:, self.hidden_ids] = lowest(logits.dtype)
        proposal = noise = None
        if self.decode.temperature > 0:
            rows = self.live()
            counts = observed.sum(dim=1)[[row.slot for row in rows]].tolist()
            proposal = propose(logits, counts, [row.generator for row in rows], self.decode.temperature)
        if "noise" in self.policy.needs:
            noise = torch.zeros(observed.shape, device=self.device)
            for row in self.live():
                noise[row.slot] = torch.rand(self.width, generator=row.generator, device=self.device)
        return proposal, noise

    def look(self, logits: Tensor, hidden: Hidden | None, observed: Tensor, proposal: Tensor | None) -> Look:
        """Scan the observed positions. logits float [P, V], in the order of `observed` [S, W]."""
        slots = observed.reshape(-1).nonzero().squeeze(1)
        return Look(logits, slots, self.memory, self.policy.needs, proposal, hidden, self.decode.scan)

    def decide(
        self, look: Look, observed: Tensor, eligible: Tensor, noise: Tensor | None, eager: bool
    ) -> tuple[Signals, Decision]:
        """Ask the policy. `eager` measures everything, also what does not matter to the decision."""
        assert self.view is not None
        steps = self.view.steps
        signals = observe(look, observed, eligible, step=self.step, steps=steps, noise=noise, eager=eager)
        decision, self.state = self.policy.decide(signals, self.state)
        return signals, decision

    def commit(self, columns: Tensor, look: Look, signals: Signals, decision: Decision) -> None:
        """Write the canvas: what was decided, and as much more by rank as the step budget asks for. The history of
        what is still masked moves on.
        """
        reason = reasons(signals, decision)
        slot, offset = reason.nonzero(as_tuple=True)
        column, token = columns[slot, offset], signals.token[slot, offset]
        self.canvas[slot, column + (self.canvas.shape[1] - self.decode.gen_length)] = token
        self.masked[slot, column] = False
        self.step = self.step + 1  # a new one: a policy may keep the old one
        look.follow(reason.view(-1)[look.slots] == 0)

        for row in self.live():
            row.steps += 1
            row.turn += 1
        facts = torch.stack([slot, column, token, reason[slot, offset]]).tolist()
        for s, place, word, why, sure in zip(*facts, signals.confidence[slot, offset].tolist(), strict=True):
            row_ = self.rows[s]
            assert row_ is not None
            row_.commits.append(Commit(place, word, row_.steps, REASONS[why], sure))
            row_.left -= 1
            if word in self.spec.eos_ids and (row_.end is None or place < row_.end):
                row_.end = place

    def advance(self) -> list[Row]:
        """Move rows whose block is full to their next block; return those that are done."""
        finished = []
        for row in self.live():
            ended = self.decode.early_stop and row.end is not None and not self.masked[row.slot, : row.end].any()
            if ended or (row.left == 0 and row.block == len(self.blocks) - 1):
                finished.append(row)
            elif row.left == 0:
                self._enter(row, row.block + 1)
        return finished

    # -- what is told ----------------------------------------------------------------------------------------------

    def step_events(
        self, columns: Tensor, signals: Signals, decision: Decision, told: Mapping[int, bool]
    ) -> list[Step]:
        """One `Step` for each row that is named in `told`, with its proposals where that is true."""
        canvas = self.canvas[:, -self.decode.gen_length :].tolist()
        proposals = self._proposals(columns, signals, decision) if True in told.values() else {}
        events = []
        for row in self.live():
            if row.number in told:
                committed = tuple(each for each in row.commits[-self.width :] if each.step == row.steps)
                seen = proposals[row.slot] if told[row.number] else ()
                events.append(Step(row.number, row.steps, row.block, tuple(canvas[row.slot]), committed, seen))
        return events

    def _proposals(self, columns: Tensor, signals: Signals, decision: Decision) -> dict[int, tuple[Proposal, ...]]:
        """What was proposed in each slot in use, with everything measured there."""
        shown = {**signals.measured, **decision.notes}
        names, values = list(shown), [board.tolist() for board in shown.values()]
        place, seen = columns.tolist(), signals.observed.tolist()
        token, sure = signals.token.tolist(), signals.confidence.tolist()
        return {
            row.slot: tuple(
                Proposal(
                    place[row.slot][w],
                    token[row.slot][w],
                    sure[row.slot][w],
                    {n: float(v[row.slot][w]) for n, v in zip(names, values, strict=True)},
                )
                for w in range(self.width)
                if seen[row.slot][w]
            )
            for row in self.live()
        }

    def _output(self, row: Row, finish_reason: str, error: str) -> Output:
        tokens = self.canvas[row.slot, -self.decode.gen_length :].tolist()
        masked = self.masked[row.slot].tolist()
        ends = [position for position, token in enumerate(tokens) if token in self.spec.eos_ids]
        if not finish_reason:
            finish_reason = "eos" if ends else "length"
        if True in masked:  # stopped before the end: what stands to the left of the first hole
            hole = masked.index(True)
            ends = [end for end in ends if end < hole]
            tokens = tokens[:hole]
        if self.decode.early_stop and ends:
            tokens = tokens[: ends[0] + 1]
        return Output(
            text="",
            tokens=tuple(tokens),
            prompt_tokens=len(row.request.prompt),
            steps=row.steps,
            forwards=row.forwards,
            finish_reason=finish_reason,
            policy=self.policy.label,
            commits=tuple(row.commits),
            error=error,
        )


def lane_key(request: Request, spec: ModelSpec) -> tuple[Policy, Decode, int]:
    """Rows with equal keys share a lane: everything but prompt and seed, and where the prompt ends on a block grid."""
    offset = 0 if spec.block is None else len(request.prompt) % spec.block
    return request.policy, replace(request.decode, seed=0), offset
