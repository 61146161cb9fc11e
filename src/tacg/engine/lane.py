"""A lane: the rows of a batch that are decoded with the same policy and settings, side by side.

Everything that belongs to such rows is here: their canvas, the scan's memory, the policy's state. Rows keep their
slot for life; a free slot is taken by the next row. Each row has its own block and step, so none waits for another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from tacg.cache import Cache, resolve_mode, window
from tacg.engine.events import Proposal, Step
from tacg.engine.sampling import propose
from tacg.models.base import Span
from tacg.scan import Hidden, Look, Memory, observe
from tacg.types import Commit, Decision, Output, Reason, Signals, top

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from tacg.engine.request import Decode, Request
    from tacg.models.base import ModelSpec
    from tacg.policies import Policy, State


@dataclass(slots=True)
class Row:
    """One request on its way. `steps` counts decisions, `forwards` model calls.

    cache    the row's keys and values, if any are kept; up to `settled` they will never change
    """

    number: int
    request: Request
    prompt: Tensor
    generator: Generator
    slot: int = -1
    steps: int = 0
    forwards: int = 0
    cache: Cache | None = None
    settled: int = 0


class Lane:
    """Canvas, memory and state of S slots; an answer has G positions, a window W of them.

    tokens  int64 [S, G]   the canvas; masked positions hold the mask id
    masked  bool  [S, G]   still to be committed (all false in a free slot)
    block   int64 [S]      each row's block
    step    int64 [S]      steps it has taken in that block
    when, why int64 [S, G], sure float [S, G]: step, reason and confidence of each commit
    """

    def __init__(
        self, policy: Policy, decode: Decode, offset: int, spec: ModelSpec, device: torch.device, max_rows: int
    ) -> None:
        self.policy, self.decode, self.spec, self.device, self.max_rows = policy, decode, spec, device, max_rows
        self.mode = resolve_mode(decode.cache, decode.observe, spec)
        self.rows: list[Row | None] = []
        self.blocks = torch.tensor(decode.blocks(offset), device=device)  # [blocks, (start, stop, steps)]
        self.width = (
            decode.gen_length if decode.observe == "sequence" else int((self.blocks[:, 1] - self.blocks[:, 0]).max())
        )
        self.hidden_ids = torch.tensor(sorted({*spec.unwritable, *decode.suppress}), dtype=torch.int64, device=device)
        self.eos = torch.tensor(spec.eos_ids, device=device)
        self.memory = Memory(0, self.width, device, decode.memory)
        self.state: State = policy.start(0, self.width, device)
        board = torch.zeros(0, decode.gen_length, dtype=torch.int64, device=device)
        self.tokens, self.when, self.why, self.sure = board, board, board, board.double()
        self.masked = board.bool()
        self.block = self.step = board.new_zeros(0)

    # -- rows come and go ------------------------------------------------------------------------------------------

    def join(self, row: Row) -> None:
        """Give the row a slot with a fully masked answer."""
        if None not in self.rows:
            self._grow(min(max(1, 2 * len(self.rows)), self.max_rows))
        slot = row.slot = self.rows.index(None)
        self.rows[slot] = row
        row.cache = Cache(len(row.prompt) + self.decode.gen_length) if self.mode != "none" else None
        self.memory.forget(slot)
        _restart(self.state, slot, self.policy.start(1, self.width, self.device))
        self.tokens[slot], self.masked[slot] = self.spec.mask_id, True
        self.when[slot], self.why[slot], self.sure[slot] = 0, int(Reason.NONE), 0.0
        self.block[slot], self.step[slot] = 0, 0

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
        self.state = _joined(self.state, self.policy.start(more, self.width, self.device))
        for name in ("tokens", "masked", "when", "why", "sure", "block", "step"):
            board = getattr(self, name)
            setattr(self, name, torch.cat([board, board.new_zeros(more, *board.shape[1:])]))

    # -- one step --------------------------------------------------------------------------------------------------

    def window(self) -> tuple[Tensor, Tensor, Tensor]:
        """Positions in view int64 [S, W]; those observed and those eligible, bool [S, W]."""
        start, stop, _ = self.blocks[self.block].unbind(dim=1)
        offset = torch.arange(self.width, device=self.device)
        whole = self.decode.observe == "sequence"
        columns = offset.expand(len(start), -1) if whole else start[:, None] + offset
        active = (columns >= start[:, None]) & (columns < stop[:, None])
        columns = columns.clamp(max=self.decode.gen_length - 1)
        masked = self.masked.gather(1, columns)
        eligible = masked & active
        return columns, masked if whole else eligible, eligible

    def span(self, row: Row) -> Span:
        """The part of the row that this step computes."""
        start, stop, _ = self.blocks[self.block[row.slot]].tolist()
        prompt = len(row.prompt)
        first = not self.step[row.slot]
        length = prompt + self.decode.gen_length
        where = window(self.mode, self.spec, prompt + start, prompt + stop, length, first=first, settled=row.settled)
        if self.spec.block is not None:  # what is before this block is complete, and computed again by this very step
            row.settled = (prompt + start) // self.spec.block * self.spec.block
        return Span(*where, row.cache)

    def draw(self, logits: Tensor, observed: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """This step's random numbers, row by row: sampled proposals int64 [P] and noise [S, W], as far as needed."""
        logits[:, self.hidden_ids] = -torch.inf
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
        signals = observe(
            look, observed, eligible, step=self.step, steps=self.blocks[self.block, 2], noise=noise, eager=eager
        )
        decision, self.state = self.policy.decide(signals, self.state)
        return signals, decision

    def commit(self, columns: Tensor, look: Look, signals: Signals, decision: Decision) -> Tensor:
        """Write the canvas: what was decided, and as much more by rank as the step budget asks for. The history of
        what is still masked moves on.

        Returns why each position of the window was committed, int64 [S, W].
        """
        reason = torch.zeros_like(signals.token)
        if decision.extra is not None:
            reason[decision.extra & signals.eligible] = int(Reason.EXTRA)
        reason[decision.base & signals.eligible] = int(Reason.BASE)
        goal = signals.owed() if decision.pace is None else decision.pace.clamp(min=1)
        goal = torch.where(signals.step + 1 >= signals.steps, self.width, goal)  # the last step takes all that is left
        late = top(decision.rank, signals.eligible & (reason == 0), goal - (reason > 0).sum(dim=1))
        reason[late] = int(Reason.FALLBACK)

        for row in self.live():
            row.steps += 1
        steps = torch.tensor([row.steps if row else 0 for row in self.rows], device=self.device)
        slot, offset = reason.nonzero(as_tuple=True)
        place = slot, columns[slot, offset]
        self.step += 1
        self.tokens[place] = signals.token[slot, offset]
        self.masked[place] = False
        self.why[place] = reason[slot, offset]
        self.sure[place] = signals.confidence[slot, offset].to(self.sure.dtype)
        self.when[place] = steps[slot]
        look.follow(reason.reshape(-1)[look.slots] == 0)
        return reason

    def advance(self) -> list[Row]:
        """Move rows whose block is full to their next block; return those that are done."""
        start, stop, _ = self.blocks[self.block].unbind(dim=1)
        place = torch.arange(self.decode.gen_length, device=self.device)
        inside = (place >= start[:, None]) & (place < stop[:, None])
        full = ~(self.masked & inside).any(dim=1)
        done = full & (self.block == len(self.blocks) - 1)
        if self.decode.early_stop:
            closed = self.masked.cumsum(dim=1) == 0  # nothing masked up to here
            done |= (closed & torch.isin(self.tokens, self.eos)).any(dim=1)
        finished = []
        for row, row_full, row_done in zip(self.rows, full.tolist(), done.tolist(), strict=True):
            if row is None:
                continue
            if row_done:
                finished.append(row)
            elif row_full:
                self.block[row.slot] += 1
                self.step[row.slot] = 0
                if self.decode.observe == "block":
                    self.memory.forget(row.slot)
        return finished

    # -- what is told ----------------------------------------------------------------------------------------------

    def step_events(self, columns: Tensor, signals: Signals, decision: Decision, reason: Tensor) -> list[Step]:
        """One `Step` for each row."""
        shown = {**signals.measured, **decision.notes}
        names, values = list(shown), [board.tolist() for board in shown.values()]
        place, seen, why = columns.tolist(), signals.observed.tolist(), reason.tolist()
        token, sure = signals.token.tolist(), signals.confidence.tolist()
        canvas, block = self.tokens.tolist(), self.block.tolist()
        events = []
        for row in self.live():
            s = row.slot
            offsets = [w for w in range(self.width) if seen[s][w]]
            committed = tuple(
                Commit(place[s][w], token[s][w], row.steps, Reason(why[s][w]).name.lower(), sure[s][w])
                for w in offsets
                if why[s][w]
            )
            proposals = tuple(
                Proposal(
                    place[s][w],
                    token[s][w],
                    sure[s][w],
                    {n: float(v[s][w]) for n, v in zip(names, values, strict=True)},
                )
                for w in offsets
            )
            events.append(Step(row.number, row.steps, block[s], tuple(canvas[s]), committed, proposals))
        return events

    def _output(self, row: Row, finish_reason: str, error: str) -> Output:
        tokens, masked = self.tokens[row.slot].tolist(), self.masked[row.slot].tolist()
        boards = zip(
            tokens,
            self.when[row.slot].tolist(),
            self.why[row.slot].tolist(),
            self.sure[row.slot].tolist(),
            strict=True,
        )
        commits = [
            Commit(position, token, when, Reason(why).name.lower(), sure)
            for position, (token, when, why, sure) in enumerate(boards)
            if why
        ]
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
            commits=tuple(sorted(commits, key=lambda commit: (commit.step, commit.position))),
            error=error,
        )


def lane_key(request: Request, spec: ModelSpec) -> tuple[Policy, Decode, int]:
    """Rows with equal keys share a lane: everything but prompt and seed, and where the prompt ends on a block grid."""
    offset = 0 if spec.block is None else len(request.prompt) % spec.block
    return request.policy, replace(request.decode, seed=0), offset


def _restart(state: State, slot: int, fresh: State) -> None:
    """Overwrite one row of a state."""
    for name, value in state.items():
        if isinstance(value, dict):
            _restart(value, slot, fresh[name])
        else:
            value[slot] = fresh[name][0]


def _joined(state: State, more: State) -> State:
    """Two states, one below the other."""
    return {
        name: _joined(value, more[name]) if isinstance(value, dict) else torch.cat([value, more[name]])
        for name, value in state.items()
    }
