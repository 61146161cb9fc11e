"""A batch: rows that share a policy's structure, side by side in tensors of one shape.

Everything about these rows is kept here, on the device: canvas, masks, blocks, trajectories. Rows may differ in
prompt, length, block grid, steps, temperature, seed and knobs. A row keeps its slot until it finishes; a free slot is
taken by the next row. Each row has its own block and step, so none waits for another.

A step synchronizes with the device once, at its end, to read the report. On a CPU synchronizing is free, so only the
needed positions are computed; on other devices all positions of the window are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from tacg.cache import Store, resolve_mode
from tacg.engine.advance import Boards, InBlock, advance, in_view
from tacg.engine.constrained import Constrained
from tacg.engine.further import Attended, Verified, add_draws, drawn_proposals
from tacg.engine.native_commit import places_of
from tacg.engine.plan import Plan, extent, span_key
from tacg.errors import TacgError
from tacg.policies.state import resized, restart, stack
from tacg.scan import Hidden, Trajectories, lowest
from tacg.types import BY_ENGINE, REASONS, Commit, Reason, even_share

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import numpy as np
    from torch import Tensor

    from tacg.engine.advance import AnyReport
    from tacg.engine.further import Further
    from tacg.engine.report import HostReport
    from tacg.engine.request import Request
    from tacg.engine.row import Row
    from tacg.models.base import Denoiser, ModelSpec, Span
    from tacg.scan import StepScan
    from tacg.types import Decision, Output, Signals


class StepView(NamedTuple):
    """What a step reads.

    observed, eligible  bool [S, L], positions that are scanned, and positions that may be committed
    places              int64 [P], positions whose logits are computed, as indices into [S * L] (None: all)
    slots               int64 [P], where their history is kept (None: at `places`)
    columns             int64 [S, W], the window of each row on devices that read all of it (None: everything)
    """

    observed: Tensor
    eligible: Tensor
    places: Tensor | None = None
    slots: Tensor | None = None
    columns: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did, on the device and, by slot, on the host.

    blocks   the block that each slot was in
    written  commits of each slot
    failed   slots whose logits were unusable, with the first such position
    """

    signals: Signals
    decision: Decision
    blocks: dict[int, int]
    written: dict[int, list[Commit]]
    failed: dict[int, int]


class Batch:
    """S slots with answers of up to L positions, W of them in view at once, after prompts of up to M tokens.

    canvas  int64 [S, M + L + 1]  prompts, aligned right, then answers, then one mask for positions beyond their end
    answer  int64 [S, L]          the answers on the canvas, as a view
    boards  the state of each row (see `Boards`)
    """

    def __init__(
        self, request: Request, spec: ModelSpec, device: torch.device, max_rows: int, verifier: Denoiser | None = None
    ) -> None:
        self.policy, self.decode, self.needs = request.policy, request.decode, request.policy.needs
        self.spec, self.device, self.max_rows = spec, device, max_rows
        self.mode = resolve_mode(self.decode.cache, self.decode.observe, spec, self.needs)
        self.whole = self.decode.observe == "sequence" or self.needs.scope != "block"
        # Blocks that are not open are not computed then, so they cannot be observed.
        self.sees_all = self.whole and self.mode != "dual" and spec.causal_block is None
        self.compact = device.type == "cpu" and not self.needs.branches
        self.rows: list[Row | None] = []
        self.store = Store()
        suppressed = sorted({*spec.unwritable, *self.decode.suppress})
        self.suppressed = self._upload(suppressed)
        self.prompt = self.length = self.width = self.most = 0
        self.canvas = torch.full((0, 1), spec.mask_id, device=device)
        self.answer = self.canvas[:, :0]
        self.boards = Boards.blank(0, 0, 0, device)
        self.trajectories = Trajectories(0, 0, device, self.decode.memory)
        self.trajectories.state = self.policy.start(0, 0, device)
        self.plan: Plan | None = None
        self.in_block: InBlock | None = None  # None: a row has entered a block since
        self.history: Tensor | None = None  # int64 [S * L], the slot of each position's history; the same
        self.view: StepView | None = None
        self.cut = False  # whether the last decision set a `reach`

        # Needed by few requests only.
        self.constrained: Constrained | None = None
        if request.constraint is not None:
            self.constrained = Constrained(device, spec.mask_id, compact=self.compact, revises=self.policy.revises)
        self.attended = Attended(self.needs.attention) if self.needs.attention else None
        self.further: list[Further] = [] if self.attended is None else [self.attended]
        if self.needs.samples or self.needs.names & {*BY_ENGINE}:
            self.further.append(add_draws)
        if self.needs.verifier is not None and verifier is not None:
            self.further.append(Verified(verifier, self.needs.verifier, suppressed, device))

    def _upload(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self.device)

    # -- rows join and leave ---------------------------------------------------------------------------------------

    def join(self, row: Row) -> None:
        """Assign the row a slot."""
        self._make_room(row)
        slot = row.slot = self.rows.index(None)
        self.rows[slot] = row
        row.cache = self.store.row(slot, extent(row, self.spec), len(self.rows)) if self.mode != "none" else None
        restart(self.trajectories.state, slot, row.request.policy.start(1, self.length, self.device))
        self.trajectories.seen[slot] = False
        decode, start = row.request.decode, self.prompt - len(row.request.prompt)
        ids = self._upload([*row.request.prompt, *row.answer])
        self.canvas[slot, start : start + len(ids)] = ids
        holes, masked = row.request.holes(self.spec.mask_id), [each == self.spec.mask_id for each in row.answer]
        fresh = Boards.of(holes, masked, row.blocks, decode.seed, decode.temperature, self.length, self.most)
        restart(self.boards._asdict(), slot, {name: value.to(self.device) for name, value in fresh._asdict().items()})
        row.block, row.settled = int(fresh.block), masked.index(True)
        self._regroup()

    def bytes_taken(self, joining: Row | None = None) -> int:
        """Bytes that the rows take, with another one if it joins: every slot has room for the largest row."""
        slots, rows = (len(self.rows), []) if joining is None else (self._slots_after(), [joining])
        return slots * max(row.bytes for row in [*self.live(), *rows])

    def _slots_after(self) -> int:
        """How many slots there are once another row has joined."""
        return len(self.rows) if None in self.rows else min(max(1, 2 * len(self.rows)), self.max_rows)

    def leave(self, row: Row, finish_reason: str = "", error: str = "") -> Output:
        """Free the row's slot and return its output. Without a finish reason, the answer decides: eos or length."""
        self.rows[row.slot] = row.cache = row.draft_cache = None
        for board in (self.boards.masked, self.boards.holes, self.trajectories.seen):
            board[row.slot] = False
        self._regroup()
        return row.output(self.spec.mask_id, self.spec.eos_ids, finish_reason, error)

    def live(self) -> list[Row]:
        """The rows in this batch, by slot."""
        return [row for row in self.rows if row is not None]

    def _regroup(self) -> None:
        """After rows join or leave: drop the plan of the next forward, and update the knobs of each slot."""
        self.plan = None
        self._forget_blocks()
        live = self.live()
        if self.constrained is not None:
            self.constrained.regroup(self.rows)
        if live:
            self.policy = stack([(row or live[0]).request.policy for row in self.rows], self.device)

    def _make_room(self, row: Row) -> None:
        """Grow whatever is too small to hold this row as well."""
        rows = self._slots_after()
        length, prompt = max(self.length, len(row.answer)), max(self.prompt, len(row.request.prompt))
        widest = max(stop - start for start, stop, _ in row.blocks)
        width, most = length if self.whole else max(self.width, widest), max(self.most, len(row.blocks))
        if (rows, length, prompt, width, most) == (len(self.rows), self.length, self.prompt, self.width, self.most):
            return
        before, places = self.trajectories, self.trajectories.places()
        slots = self._slots(places) if len(places) else places
        canvas = torch.full((rows, prompt + length + 1), self.spec.mask_id, device=self.device)
        have = self.canvas[:, :-1]
        canvas[: len(have), prompt - self.prompt : prompt - self.prompt + have.shape[1]] = have
        self.canvas = canvas
        self.boards = Boards(**resized(self.boards._asdict(), Boards.blank(rows, length, most, self.device)._asdict()))
        self.trajectories = Trajectories(rows, length, self.device, self.decode.memory, width)
        self.trajectories.state = resized(before.state, self.policy.start(rows, length, self.device))
        self.trajectories.seen = resized({"seen": before.seen}, {"seen": self.trajectories.seen})["seen"]
        self.rows += [None] * (rows - len(self.rows))
        self.length, self.prompt, self.width, self.most = length, prompt, width, most
        self.answer = canvas[:, prompt : prompt + length]
        self.ruler = torch.arange(length, device=self.device)
        self._forget_blocks()
        if len(places):
            self.trajectories.memory.take_over(before.memory, slots, self._slots(self.trajectories.places()))
        self.origins = torch.arange(0, rows * length, length, device=self.device)[:, None]
        self.windows = None if width == length else torch.arange(rows * width, device=self.device)

    # -- what a forward computes -----------------------------------------------------------------------------------

    def forward_input(self) -> tuple[Tensor, list[Span], Tensor]:
        """Tokens int64 [N], their spans, and int64 [P], the tokens whose logits are needed."""
        canvas, copies = self._canvases()
        plan = self.planned(copies)
        self.view = self._look()
        spans = plan.spans if self.attended is None else self.attended.asked_of(self.live(), plan.spans)
        return canvas.view(-1).index_select(0, plan.pack), spans, self._select(plan, self.view)

    def planned(self, copies: int = 1) -> Plan:
        """The plan of the next forward, with so many canvases per row; made again after a span has changed."""
        self.plan = self.plan or Plan.of(
            self.rows, self.spec, self.mode, self.needs, self.prompt, self.length, copies, self.device
        )
        return self.plan

    def _canvases(self) -> tuple[Tensor, int]:
        """What is forwarded, and the number of canvases per row: one, unless the policy has proposed branches."""
        return self.canvas, 1

    def _select(self, plan: Plan, view: StepView) -> Tensor:
        """int64 [P]: where logits are read. Committed positions are read at their shadows, if there are any."""
        if not self.compact:
            return self._select_windows(plan, view)
        assert view.places is not None
        assert plan.at is not None
        select = plan.at.index_select(0, view.places)
        if plan.shadow is not None:
            slot = view.places // self.length
            select = select + plan.shadow[slot] * ~self.boards.masked.view(-1)[view.places]
        return select

    def _select_windows(self, plan: Plan, view: StepView) -> Tensor:
        """Like `_select`, for whole windows."""
        masked, columns = self.boards.masked, self.ruler if view.columns is None else view.columns[:, None]
        select = plan.offset + columns
        if plan.shadow is not None:
            masked = masked if view.columns is None else masked.gather(1, view.columns)
            select = select + (plan.shadow[:, None] * ~masked)[:, None]
        return (select if plan.inside else select.clamp(max=len(plan.pack) - 1)).view(-1)

    def computed(self) -> None:
        """Record that the model has computed the plan."""
        assert self.plan is not None
        self.plan.charge(self.live(), self.spec)

    def _look(self) -> StepView:
        observed, eligible = in_view(self.boards, self.needs, self.active(), whole=self.sees_all, cut=self.cut)
        if self.compact:
            places, slots = places_of(observed, self._history())
            return StepView(observed, eligible, places, slots)
        if self.windows is None:
            return StepView(observed, eligible)
        columns = self._left() + self.ruler[: self.width]
        return StepView(observed, eligible, (columns + self.origins).view(-1), self.windows, columns)

    def _history(self) -> Tensor | None:
        """int64 [S * L]: the slots that hold the history of all positions; None: each one's own place."""
        if self.width == self.length:
            return None
        if self.history is None:
            windows = torch.arange(len(self.rows), device=self.device)[:, None] * self.width
            self.history = (windows + self.ruler - self._left()).view(-1)
        return self.history

    def _slots(self, places: Tensor) -> Tensor:
        """int64 [P]: the slots that hold the history of these positions (indices into [S * L])."""
        history = self._history()
        return places if history is None else history.index_select(0, places)

    def _left(self) -> Tensor:
        """int64 [S, 1]: where each row's window begins: at its block, or earlier if it would not fit otherwise."""
        return self.active().start.clamp(max=self.length - self.width)

    def active(self) -> InBlock:
        """What is known of the active blocks; looked up again after a row has entered another one."""
        if self.in_block is None:
            self.in_block = InBlock.of(self.boards)
        return self.in_block

    def _forget_blocks(self) -> None:
        self.in_block = self.history = None

    # -- one step --------------------------------------------------------------------------------------------------

    def step(self, logits: Tensor, hidden: Hidden | None, *, eager: bool) -> tuple[AnyReport, Signals, Decision]:
        """Decide and write one step of all rows; returns what `read` needs.

        logits  float [P, V], as requested by `forward_input`
        eager   measure every signal, even where it changes no decision
        """
        logits.index_fill_(1, self.suppressed, lowest(logits.dtype))
        if self.constrained is not None:
            assert self.view is not None
            self.constrained.apply(logits, (len(self.rows), self.length), self.view.places)
            eager = True  # ranks decide which of several accepted tokens is written, so all of them must be measured
        scan, signals = self.scan(logits, hidden, eager=eager)
        decision = self.decide(signals)
        return self.commit(scan, signals, decision), signals, decision

    def scan(self, logits: Tensor, hidden: Hidden | None, *, eager: bool) -> tuple[StepScan, Signals]:
        """Logits -> signals."""
        assert self.view is not None
        view, boards = self.view, self.boards
        scan = self.trajectories.scan(
            logits, self.needs, view.observed, places=view.places, slots=view.slots, exact=self.compact,
            proposal=drawn_proposals(self, logits) if self.decode.temperature > 0 else None,
            hidden=hidden, backend=self.decode.scan,
        )  # fmt: skip
        step, steps = boards.step, self.active().steps
        active = None if self.needs.scope == "block" else view.eligible & self.active().here
        if self.constrained is not None:  # contradictory positions wait, so the last step may be repeated
            step = torch.minimum(step, steps - 1)
        signals = scan.to_signals(
            view.eligible, eager=eager, step=step, steps=steps, masked=boards.masked, written=self.answer,
            grid=boards.grid, current=boards.block, opened=boards.open, length=boards.length,
            active=active,
            due=None if self.compact else even_share(view.eligible if active is None else active, step, steps),
        )  # fmt: skip
        for add in self.further:
            signals = add(self, logits, scan, signals)
        return scan, signals

    def decide(self, signals: Signals) -> Decision:
        """Signals -> decision."""
        return self.trajectories.decide(self.policy, signals)

    def commit(self, scan: StepScan, signals: Signals, decision: Decision, before: Tensor | None = None) -> AnyReport:
        """Write the canvas and advance the state and trajectories; returns the report for `read`.

        before  int64 [S, L], reasons of what was written before the scan (a chosen branch)
        """
        if not self.policy.revises and (decision.remask is not None or decision.edit is not None):
            raise TacgError(f"`{self.policy.name}` re-masks or edits what is committed, so its `revises` must be true.")
        writes, cut = None, None
        if self.constrained is not None:
            writes = self.constrained.settle(signals, decision)
            cut = self.constrained.cut
        self.boards, after, kept, report = advance(
            self.boards, self.answer, signals, decision, self.needs, self.spec.mask_id, before, writes, cut
        )
        if after is not self.answer:
            self.answer.copy_(after)
        self.trajectories.follow(scan, kept)
        self.cut = decision.reach is not None
        return report

    # -- what the host reads ---------------------------------------------------------------------------------------

    def read(self, report: AnyReport, signals: Signals, decision: Decision) -> StepResult:
        """Read the report, the step's only synchronization with the device, and update the rows from it."""
        told, live = report.read(self.length), self.live()
        blocks = {row.slot: row.block for row in live}
        written: dict[int, list[Commit]] = {}
        for slot, position, token, why, share in told.written:
            row_ = self.rows[slot]
            assert row_ is not None
            commit = Commit(position, token, row_.steps + 1, REASONS[why], share)
            row_.answer[position] = token
            row_.commits.append(commit)
            written.setdefault(slot, []).append(commit)
        for row in live:
            if row.slot not in told.failed:
                before = span_key(row, self.spec, self.mode, self.needs)
                row.move(told.scalars(row.slot), self.spec, revises=self.policy.revises)
                if span_key(row, self.spec, self.mode, self.needs) != before:
                    self.plan = None
                if row.block != blocks[row.slot]:
                    self._forget_blocks()
        if told.cut is not None:
            self._note_constraints(told, told.cut)
        return StepResult(signals, decision, blocks, written, told.failed)

    def _note_constraints(self, told: HostReport, cut: np.ndarray) -> None:
        """Record the probability that constraints removed, and the tokens they forced."""
        for slot, position, _, why, _ in told.written:
            row = self.rows[slot]
            assert row is not None
            row.cut[position] = float(cut[slot, position])
            (row.forced.add if why == Reason.FORCED else row.forced.discard)(position)


def batch_key(request: Request) -> Hashable:
    """Rows with equal keys share a batch."""
    constrained = request.constraint is not None
    return request.policy.structure(), request.policy.needs, request.decode.structure(), constrained
