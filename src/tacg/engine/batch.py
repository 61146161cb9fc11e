"""A batch: rows that share a policy's structure, side by side on boards of one shape.

Everything that belongs to such rows lies here, on the device: canvas, masks, blocks, trajectories. Rows may differ in
everything that is a number: prompt, length, block grid, steps, temperature, seed and knobs. A row keeps its slot for
life; a free slot is taken by the next row. Each row has its own block and step, so none waits for another.

A step asks the device one question, at its end: the report. A CPU may be asked more, which spares it work: there only
the positions that count are computed, on a device all positions of the window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tacg.cache import Store, resolve_mode
from tacg.engine.advance import Boards, Report, advance, in_view
from tacg.engine.attention import attention_board, attention_map
from tacg.engine.branches import branch_signals, candidates, grown, take_branch
from tacg.engine.constrained import Constrained
from tacg.engine.draws import NOISE, PROPOSAL, SAMPLES, sample, uniform
from tacg.engine.plan import Plan, extent, span_key
from tacg.engine.verify import verify
from tacg.errors import TacgError
from tacg.models.base import Spans
from tacg.policies.state import resized, restart, stack
from tacg.scan import Hidden, Trajectories, lowest, probability
from tacg.types import REASONS, Commit, Reason

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torch import Tensor

    from tacg.engine.request import Request
    from tacg.engine.row import Row
    from tacg.models.base import AttentionMap, Denoiser, ModelSpec, Span
    from tacg.scan import StepScan
    from tacg.types import Branches, Decision, Mix, Output, Signals


class StepView(NamedTuple):
    """What a step looks at.

    observed, eligible  bool [S, L], the positions that are scanned, and those that may be committed
    places              int64 [P], the positions that logits are asked for, as indices into [S * L] (None: all)
    slots               int64 [P], where their history is kept (None: at `places`)
    columns             int64 [S, W], the window of each row, on devices that look at all of it (None: everything)
    """

    observed: Tensor
    eligible: Tensor
    places: Tensor | None = None
    slots: Tensor | None = None
    columns: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did, on the device and, by slot, for the host.

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
    """S slots with answers of up to L positions, W of them in view at once, behind prompts of up to M tokens.

    canvas  int64 [S, M + L + 1]  prompts, aligned to the right, answers, and a mask for what lies beyond their end
    boards  where each row stands (see `Boards`)
    """

    def __init__(
        self, request: Request, spec: ModelSpec, device: torch.device, max_rows: int, verifier: Denoiser | None = None
    ) -> None:
        self.policy, self.decode, self.needs = request.policy, request.decode, request.policy.needs
        self.spec, self.device, self.max_rows = spec, device, max_rows
        self.mode = resolve_mode(self.decode.cache, self.decode.observe, spec, self.needs)
        self.whole = self.decode.observe == "sequence" or self.needs.scope != "block"
        # Blocks that are not open are not computed there, so nothing of them can be observed.
        self.sees_all = self.whole and self.mode != "dual" and spec.causal_block is None
        self.compact = device.type == "cpu" and not self.needs.branches
        self.rows: list[Row | None] = []
        self.store, self.drafts = Store(), Store()  # keys and values: the model's and the verifier's
        self.verifier = verifier
        suppressed = sorted({*spec.unwritable, *self.decode.suppress})
        self.suppressed = self._upload(suppressed)
        if verifier is not None:  # its vocabulary may be smaller
            self.never_verified = self._upload([each for each in suppressed if each < verifier.spec.vocab_size])
        self.eos = self._upload(spec.eos_ids) if self.decode.early_stop and spec.eos_ids else None
        self.constrained: Constrained | None = None
        if request.constraint is not None:
            self.constrained = Constrained(device, spec.mask_id, compact=self.compact, revises=self.policy.revises)
        self.prompt = self.length = self.width = self.most = 0
        self.canvas = torch.full((0, 1), spec.mask_id, device=device)
        self.boards = Boards.blank(0, 0, 0, device)
        self.trajectories = Trajectories(0, 0, device, self.decode.memory)
        self.trajectories.state = self.policy.start(0, 0, device)
        self.branches: Branches | None = None  # proposed in the last step, to be forwarded in this one
        self.cut = False  # whether the policy has ever cut a forward short
        self.plan: Plan | None = None
        self.maps: list[AttentionMap] = []  # of the live rows, by slot, if the policy looks at attention
        self.view: StepView | None = None

    def _upload(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self.device)

    # -- rows come and go ------------------------------------------------------------------------------------------

    def join(self, row: Row) -> None:
        """Give the row a slot."""
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
        if self.branches is not None:
            self.branches.count[slot] = 0
        row.block, row.settled = int(fresh.block), masked.index(True)
        self._regroup()

    def leave(self, row: Row, finish_reason: str = "", error: str = "") -> Output:
        """Free the row's slot and say what came of it. Without a reason the answer itself gives it: eos or length."""
        self.rows[row.slot] = row.cache = row.draft_cache = None
        for board in (self.boards.masked, self.boards.holes, self.trajectories.seen):
            board[row.slot] = False
        self._regroup()
        return row.output(self.spec.mask_id, self.spec.eos_ids, finish_reason, error)

    def live(self) -> list[Row]:
        """The rows in this batch, by slot."""
        return [row for row in self.rows if row is not None]

    def _regroup(self) -> None:
        """Rows have come or gone: plan the next forward anew, and give each slot its row's knobs."""
        self.plan = None
        live = self.live()
        if self.constrained is not None:
            self.constrained.regroup(self.rows)
        if live:
            self.policy = stack([(row or live[0]).request.policy for row in self.rows], self.device)

    def _make_room(self, row: Row) -> None:
        """Grow whatever is too small for one more row, or for this one."""
        rows = len(self.rows) if None in self.rows else min(max(1, 2 * len(self.rows)), self.max_rows)
        length, prompt = max(self.length, len(row.answer)), max(self.prompt, len(row.request.prompt))
        widest = max(stop - start for start, stop, _ in row.blocks)
        width, most = length if self.whole else max(self.width, widest), max(self.most, len(row.blocks))
        if (rows, length, prompt, width, most) == (len(self.rows), self.length, self.prompt, self.width, self.most):
            return
        before, slots = self.trajectories, self._slots(self.trajectories.places())
        canvas = torch.full((rows, prompt + length + 1), self.spec.mask_id, device=self.device)
        have = self.canvas[:, :-1]
        canvas[: len(have), prompt - self.prompt : prompt - self.prompt + have.shape[1]] = have
        self.canvas = canvas
        self.boards = Boards(**resized(self.boards._asdict(), Boards.blank(rows, length, most, self.device)._asdict()))
        if self.branches is not None:
            self.branches = grown(self.branches, rows, length)
        self.trajectories = Trajectories(rows, length, self.device, self.decode.memory, width)
        self.trajectories.state = resized(before.state, self.policy.start(rows, length, self.device))
        self.trajectories.seen = resized({"seen": before.seen}, {"seen": self.trajectories.seen})["seen"]
        self.rows += [None] * (rows - len(self.rows))
        self.length, self.prompt, self.width, self.most = length, prompt, width, most
        self.trajectories.memory.take_over(before.memory, slots, self._slots(self.trajectories.places()))
        self.ruler = torch.arange(length + 1, device=self.device)
        self.origins = torch.arange(0, rows * length, length, device=self.device)[:, None]
        self.windows = None if width == length else torch.arange(rows * width, device=self.device)

    # -- what a forward computes -----------------------------------------------------------------------------------

    def forward_input(self) -> tuple[Tensor, list[Span], Tensor]:
        """Tokens int64 [N], their spans, and at which of them logits are asked for, int64 [P]."""
        copies = 1 if self.branches is None else self.needs.branches
        plan = self.plan = self.plan or Plan.of(
            self.rows, self.spec, self.mode, self.needs, self.prompt, self.length, copies, self.device
        )
        self.view = self._look()
        canvas = self.canvas
        if self.branches is not None:
            canvas = candidates(canvas, self.branches, self.boards.masked, self.prompt)
        tokens, spans = canvas.view(-1)[plan.pack], plan.spans
        if self.needs.attention:
            self.maps = [attention_map(row, self.needs.attention) for row in self.live()]
            spans = Spans(replace(span, attention=each) for span, each in zip(spans, self.maps, strict=True))
        return tokens, spans, self._select(plan, self.view)

    def _select(self, plan: Plan, view: StepView) -> Tensor:
        """int64 [P]: where the logits are read. Committed positions are read at their shadows, if they have any."""
        masked = self.boards.masked
        if self.compact:
            assert view.places is not None
            slot = view.places // self.length
            select = view.places - slot * self.length + plan.offset[slot, 0, 0]
            return select if plan.shadow is None else select + plan.shadow[slot] * ~masked.view(-1)[view.places]
        columns = self.ruler[:-1] if view.columns is None else view.columns[:, None]
        select = plan.offset + columns
        if plan.shadow is not None:
            masked = masked if view.columns is None else masked.gather(1, view.columns)
            select = select + (plan.shadow[:, None] * ~masked)[:, None]
        return (select if plan.inside else select.clamp(max=len(plan.pack) - 1)).view(-1)

    def computed(self) -> None:
        """The model has computed the plan."""
        assert self.plan is not None
        self.plan.charge(self.live(), self.spec)

    def _look(self) -> StepView:
        observed, eligible = in_view(self.boards, self.needs, whole=self.sees_all, cut=self.cut)
        if self.compact:
            places = observed.view(-1).nonzero().squeeze(1)
            return StepView(observed, eligible, places, self._slots(places))
        if self.windows is None:
            return StepView(observed, eligible)
        columns = self._left() + self.ruler[: self.width]
        return StepView(observed, eligible, (columns + self.origins).view(-1), self.windows, columns)

    def _slots(self, places: Tensor) -> Tensor:
        """int64 [P]: where the history of these positions, indices into [S * L], is kept."""
        if self.width == self.length:
            return places
        slot = places // self.length
        return places - slot * (self.length - self.width) - self._left()[slot, 0]

    def _left(self) -> Tensor:
        """int64 [S, 1]: where each row's window begins: with its block, or as far before as keeps it on the board."""
        return self.boards.starts.gather(1, self.boards.block[:, None]).clamp(max=self.length - self.width)

    # -- one step --------------------------------------------------------------------------------------------------

    def step(self, logits: Tensor, hidden: Hidden | None, *, eager: bool) -> StepResult:
        """Decide and write one step of all rows. `eager` measures everything, also what does not matter.

        logits  float [P, V], as `forward_input` asked for them
        """
        logits.index_fill_(1, self.suppressed, lowest(logits.dtype))
        if self.constrained is not None:
            assert self.view is not None
            self.constrained.apply(logits, (len(self.rows), self.length), self.view.places)
        before = None
        if self.branches is not None:
            logits, before = self._choose(logits)
            self.view = self._look()
        scan, signals = self.scan(logits, hidden, eager=eager)
        decision = self.decide(signals)
        return self.read(self.commit(scan, signals, decision, before), signals, decision)

    def scan(self, logits: Tensor, hidden: Hidden | None, *, eager: bool) -> tuple[StepScan, Signals]:
        """Logits -> signals."""
        assert self.view is not None
        view, boards = self.view, self.boards
        scan, drawn = self._scan(logits, hidden, view)
        steps = boards.budgets.gather(1, boards.block[:, None]).squeeze(1)
        step = boards.step
        if self.constrained is not None:  # what contradicted something waits: then the last step is taken again
            step = torch.minimum(step, steps - 1)
        signals = scan.to_signals(
            view.eligible, eager=eager, step=step, steps=steps, masked=boards.masked, written=self._answer,
            grid=boards.grid, current=boards.block, active=self._active(view), opened=boards.open, length=boards.length,
            attention=attention_board(self.live(), self.maps, len(self.rows), self.length), **drawn,
        )  # fmt: skip
        if self.needs.verifier is not None:
            signals = replace(signals, verified=self._verified(scan, signals, self.needs.verifier))
        return scan, replace(signals, due=signals.quota())

    def _active(self, view: StepView) -> Tensor | None:
        """Masks of the active block, if more than these are eligible."""
        if self.needs.scope == "block":
            return None
        return view.eligible & (self.boards.grid == self.boards.block[:, None])

    def _verified(self, scan: StepScan, signals: Signals, mix: Mix) -> Tensor:
        """int64 [S, L]: what the mixture with the verifier would write."""
        assert self.verifier is not None
        drafts = self.canvas.clone()
        answers = drafts[:, self.prompt : self.prompt + self.length]
        answers.copy_(torch.where(signals.eligible, signals.token, answers))
        places = self._every_place() if scan.places is None else scan.places
        target = verify(
            self.verifier, mix, self.rows, drafts, self.prompt, self.length, places, scan.logits, self.never_verified,
            None if self.policy.revises else self.drafts,
        )  # fmt: skip
        return torch.where(signals.eligible, scan.spread(target, -1), -1)

    def _every_place(self) -> Tensor:
        return (self.origins + self.ruler[:-1]).view(-1)

    def decide(self, signals: Signals) -> Decision:
        """Signals -> decision."""
        return self.trajectories.decide(self.policy, signals)

    def commit(self, scan: StepScan, signals: Signals, decision: Decision, before: Tensor | None) -> Report:
        """Write the canvas, move boards and trajectories on; the report for `read`."""
        if not self.policy.revises and (decision.remask is not None or decision.edit is not None):
            raise TacgError(f"`{self.policy.name}` re-masks or edits what is committed, so its `revises` must be true.")
        if self.needs.branches and decision.reach is not None:
            raise TacgError(f"`{self.policy.name}` looks ahead, so its forwards must not end early: leave out `reach`.")
        writes, cut = None, None
        if self.constrained is not None:
            writes = self.constrained.settle(signals, decision)
            cut = self.constrained.cut
        self.boards, after, kept, report = advance(
            self.boards, self._answer, signals, decision, self.needs, self.spec.mask_id, self.eos, self.ruler, before,
            writes, cut,
        )  # fmt: skip
        self._answer.copy_(after)
        self.trajectories.follow(scan, kept)
        if (self.branches is None) != (decision.branches is None):
            self.plan = None
        self.branches, self.cut = decision.branches, decision.reach is not None
        return report

    @property
    def _answer(self) -> Tensor:
        """The answers on the canvas, int64 [S, L]: a view."""
        return self.canvas[:, self.prompt : self.prompt + self.length]

    def _scan(self, logits: Tensor, hidden: Hidden | None, view: StepView) -> tuple[StepScan, dict[str, Any]]:
        """Read the logits; with what is random in this step, as far as anybody needs it."""
        boards, more = self.boards, dict[str, Any]()

        def at_places(board: Tensor) -> Tensor:
            flat = board.flatten(0, 1)
            return flat if view.places is None else flat[view.places]

        def drawn(first: int, draws: int) -> Tensor:
            count = boards.block * (1 << 32) + boards.step  # no row sees a count twice
            return uniform(boards.seed, count, self.length, first, draws)

        proposal = None
        if self.decode.temperature > 0:
            heat = at_places(boards.temperature[:, None].expand(-1, self.length))
            proposal = sample(logits, heat, at_places(drawn(PROPOSAL, 1))).squeeze(1)
        scan = self.trajectories.scan(
            logits, self.needs, view.observed, places=view.places, slots=view.slots, exact=self.compact,
            proposal=proposal, hidden=hidden, backend=self.decode.scan,
        )  # fmt: skip
        measured: dict[str, Tensor] = more.setdefault("measured", {})
        if "noise" in self.needs:
            measured["noise"] = drawn(NOISE, 1).squeeze(2)
        if "recheck" in self.needs:
            share = scan.spread(probability(logits, at_places(self._answer)), 1)
            measured["recheck"] = torch.where(boards.masked, 1.0, share)
        if self.needs.samples:
            more["draws"] = drawn(SAMPLES, 2 * self.needs.samples)
            picks = at_places(more["draws"])[:, self.needs.samples :]
            heat = at_places(boards.temperature[:, None].expand(-1, self.length))
            tokens = sample(logits, torch.where(heat > 0, heat, 1.0), picks)
            more["samples"] = scan.spread(tokens.T, -1).permute(1, 2, 0)
        return scan, more

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Let the policy pick a branch of each row, and write it: its logits [S * L, V], and what was written."""
        branches = self.branches
        assert branches is not None
        signals = branch_signals(logits, branches, self.boards.masked, self.needs, self.decode.scan)
        chosen = self.policy.choose(signals, self.trajectories.state)
        chosen = torch.minimum(chosen, (branches.count - 1).clamp(min=0))
        self.boards, after, written = take_branch(self.boards, self._answer, branches, chosen, self.ruler)
        self._answer.copy_(after)
        every = logits.view(*branches.commit.shape, -1)
        return every[torch.arange(len(every), device=self.device), chosen].flatten(0, 1), written

    # -- what the host learns --------------------------------------------------------------------------------------

    def read(self, told: Report, signals: Signals, decision: Decision) -> StepResult:
        """Read the report, the only question that a step asks the device, and bring the rows up to date with it."""
        report, size = told.packed.cpu().numpy(), self.length
        reason, token, sure = report[:, :size], report[:, size : 2 * size], report[:, 2 * size : 3 * size]
        sure = sure.astype("int32").view("float32")
        broken = (sure != sure).nonzero()
        failed = dict(zip(broken[0][::-1].tolist(), broken[1][::-1].tolist(), strict=True))
        live, scalars = self.live(), report[:, 3 * size : 3 * size + len(told.names)].tolist()
        cut = report[:, 3 * size + len(told.names) :].astype("int32").view("float32")
        blocks = {row.slot: row.block for row in live}
        for row in live:
            if row.slot not in failed:
                self._move(row, dict(zip(told.names, scalars[row.slot], strict=True)))
        written: dict[int, list[Commit]] = {}
        at = reason.nonzero()
        facts = (*at, token[at], reason[at], sure[at])
        for slot, position, word, why, share in zip(*(each.tolist() for each in facts), strict=True):
            row_ = self.rows[slot]
            assert row_ is not None
            commit = Commit(position, word, row_.steps, REASONS[why], share)
            row_.answer[position] = word
            row_.commits.append(commit)
            if cut.size:
                row_.cut[position] = float(cut[slot, position])
                (row_.forced.add if why == Reason.FORCED else row_.forced.discard)(position)
            written.setdefault(slot, []).append(commit)
        return StepResult(signals, decision, blocks, written, failed)

    def _move(self, row: Row, told: dict[str, int]) -> None:
        """Where a row stands after the step. If its next forward differs, that is planned anew."""
        before = span_key(row, self.spec, self.mode, self.needs)
        first_mask, block = told["first_mask"], told["block"]
        over = first_mask == self.length or told.get("first_eos", self.length) < first_mask
        row.steps += 1
        row.done = over and not told.get("stay")
        row.block, row.block_step, row.open = block, told["step"], told.get("open", 1)
        row.branches = max(1, told.get("branches", 0))
        row.reach = told["reach"] if told.get("reach", len(row.answer)) < len(row.answer) else None
        row.settled = min(first_mask, row.blocks[block][0]) if self.policy.revises and not row.done else first_mask
        if span_key(row, self.spec, self.mode, self.needs) != before:
            self.plan = None


def batch_key(request: Request) -> Hashable:
    """Rows with equal keys share a batch."""
    constrained = request.constraint is not None
    return request.policy.structure(), request.policy.needs, request.decode.structure(), constrained
