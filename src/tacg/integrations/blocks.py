"""Blocks of many requests, decided together inside another engine.

That engine runs the model and keeps the canvas; the trajectories are kept here. The scan, the policy and the rule that
something is committed in every step are those of our own engine.
"""

from __future__ import annotations

import hashlib
import logging
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tacg.engine.commits import resolve_commits
from tacg.engine.draws import NOISE, PROPOSAL, sample, uniform
from tacg.policies.state import merged, resized, restart
from tacg.scan import StepScan, Trajectories, lowest
from tacg.types import REASONS, Commit, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from tacg.integrations.settings import Settings
    from tacg.policies import Policy

logger = logging.getLogger(__name__)


class Block:
    """One request's block in progress: all that an engine has to carry from step to step.

    It holds a seat in `Blocks` from its first step on, and frees it when it is done or dropped.

    block_step  steps taken
    commits     what was committed, when and why, if that is recorded
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.block_step = 0
        self.commits: list[Commit] = []
        self.seat: int | None = None
        self.leave: weakref.finalize[[int], Block] | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What a step writes: commit bool [R, W].

    tokens, confidence  int64 and float [R, W], the proposal and its probability; meaningful at masks of rows at work
    failed  rows whose logits were unusable: the rest of their block is filled with a neutral token
    """

    commit: Tensor
    tokens: Tensor
    confidence: Tensor
    failed: tuple[int, ...]


class Blocks:
    """Trajectories of the blocks in progress, W positions each. A seat is a row of every tensor here; seats are reused.

    Engines form a new batch for every step. A block that is not in it keeps its trajectory.
    """

    def __init__(
        self, policy: Policy, settings: Settings, width: int, unwritable: Sequence[int], most: int = 1
    ) -> None:
        self.policy, self.settings, self.width, self.most = policy, settings, width, most
        self.unwritable = sorted({*unwritable, *settings.suppress})
        self.filler = next(token for token in range(len(self.unwritable) + 1) if token not in self.unwritable)
        self.free: list[int] = []
        self.trajectories: Trajectories | None = None  # allocated at the first logits, which tell device and vocabulary
        empty = torch.zeros(0, dtype=torch.int64)
        self.steps, self.budget, self.seeds = empty, empty, empty  # int64 [seats]: steps taken, maximum steps

    @torch.no_grad()
    def step(self, logits: Tensor, masked: Tensor, at_work: Mapping[int, Block]) -> Written:
        """Decide one step of some rows of a batch; their trajectories move on.

        logits   float [R * W, V], aligned. Overwritten where tokens are unwritable; nothing of it is kept
        masked   bool [R, W], positions to be committed
        at_work  the blocks that have masks left, by row; other rows are ignored
        """
        blocks = list(at_work.values())
        rows = torch.tensor(list(at_work), device=masked.device)
        trajectories, seats = self._seats(blocks, masked[rows], logits)
        observed = masked.new_zeros(len(self.steps), self.width)
        observed[seats] = masked[rows]
        line = seats.new_zeros(len(observed)).index_copy_(0, seats, rows)
        scan = self._scan(trajectories, logits, observed, line)
        drawn: dict[str, Any] = (
            {"measured": {"noise": self._drawn(NOISE).squeeze(2)}} if "noise" in self.policy.needs else {}
        )
        signals = scan.to_signals(observed, step=self.steps, steps=self.budget, masked=observed, **drawn)
        sound, sure, before = signals.eligible, signals.confidence, trajectories.state
        decision = trajectories.decide(self.policy, signals)
        reason = resolve_commits(signals, decision)
        present = torch.zeros_like(self.steps, dtype=torch.bool).index_fill_(0, seats, True)
        trajectories.state = merged(trajectories.state, before, present)
        trajectories.follow(scan, sound & (reason == 0), present)
        self.steps[seats] += 1
        for block in blocks:
            block.block_step += 1
        lost = observed & ~sound
        reason, tokens = reason.masked_fill(lost, Reason.FALLBACK), signals.token.masked_fill(lost, self.filler)
        if self.settings.step_map:
            self._record(reason, tokens, sure, blocks)
        failed = tuple(rows[lost[seats].any(dim=1)].tolist())
        told = (each.new_zeros(masked.shape).index_copy_(0, rows, each[seats]) for each in (reason, tokens, sure))
        why, proposed, confidence = told
        return Written(why > 0, proposed, confidence, failed)

    def release(self, block: Block) -> None:
        """Give a block's seat to the next one."""
        if block.leave is not None:
            block.leave()
            block.seat = block.leave = None

    # -- seats -----------------------------------------------------------------------------------------------------

    def _seats(self, blocks: Sequence[Block], masked: Tensor, logits: Tensor) -> tuple[Trajectories, Tensor]:
        """int64 [R]; newcomers get one."""
        newcomers = [row for row, block in enumerate(blocks) if block.seat is None]
        if self.trajectories is None:
            self._refuse_foreign(logits.shape[1])
            kind = self.settings.kind(self.width, logits.shape[1])
            self.trajectories = Trajectories(0, self.width, logits.device, kind)
            self.trajectories.state = self.policy.start(0, self.width, logits.device)
            self.steps, self.budget, self.seeds = (each.to(logits.device) for each in (self.steps,) * 3)
        if len(newcomers) > len(self.free):
            self.trajectories = self._grow(self.trajectories, len(newcomers) - len(self.free))
        for row in newcomers:
            self._sit(self.trajectories, blocks[row])
        seats = torch.tensor([block.seat for block in blocks], device=logits.device)
        if newcomers:
            masks = masked[newcomers].sum(dim=1)
            most = self.settings.steps
            self.budget[seats[newcomers]] = masks if most is None else masks.clamp(max=most)
        return self.trajectories, seats

    def _refuse_foreign(self, vocabulary: int) -> None:
        """Leave out ids to suppress that the model does not have, with a warning: an engine must not be stopped."""
        foreign = [token for token in self.unwritable if token >= vocabulary]
        if foreign:
            logger.error("`suppress` names %d, but the model has %d ids; it is left out.", foreign[0], vocabulary)
            self.unwritable = [token for token in self.unwritable if token < vocabulary]

    def _sit(self, trajectories: Trajectories, block: Block) -> None:
        seat = min(self.free)
        self.free.remove(seat)
        block.seat, block.leave = seat, weakref.finalize(block, self.free.append, seat)
        block.leave.atexit = False
        self.steps[seat], self.seeds[seat] = 0, block.seed
        trajectories.seen[seat] = False
        restart(trajectories.state, seat, self.policy.start(1, self.width, self.steps.device))

    def _grow(self, old: Trajectories, more: int) -> Trajectories:
        """Add at least `more` seats; double their number if that does not exceed the expected maximum."""
        have, device = len(self.steps), self.steps.device
        want = max(have + more, min(2 * have, self.most))
        self.free.extend(range(have, want))
        new = Trajectories(want, self.width, device, old.memory.kind)
        new.state = resized(old.state, self.policy.start(want, self.width, device))
        new.seen[:have] = old.seen
        new.memory.take_over(old.memory, old.places(), old.places())
        self.steps, self.budget, self.seeds = (
            torch.cat([each, each.new_zeros(want - have)]) for each in (self.steps, self.budget, self.seeds)
        )
        return new

    # -- one step --------------------------------------------------------------------------------------------------

    def _scan(self, trajectories: Trajectories, logits: Tensor, observed: Tensor, line: Tensor) -> StepScan:
        """Scan the masked positions; `line[seat]` is the row of the batch in that seat."""
        logits[:, self.unwritable] = lowest(logits.dtype)
        places = observed.view(-1).nonzero().squeeze(1)
        rows = line[places // self.width] * self.width + places % self.width
        proposal = None
        if self.settings.temperature > 0:
            heat = torch.full((len(places),), self.settings.temperature, device=logits.device)
            proposal = sample(logits[rows], heat, self._drawn(PROPOSAL).view(-1, 1)[places]).squeeze(1)
        return trajectories.scan(
            logits, self.policy.needs, observed, places=places, rows=rows, proposal=proposal, backend=self.settings.scan
        )

    def _drawn(self, draw: int) -> Tensor:
        """Uniform numbers [seats, W, 1]: a function of the block's seed, its step and the position."""
        return uniform(self.seeds, self.steps, self.width, draw)

    def _record(self, reason: Tensor, tokens: Tensor, confidence: Tensor, blocks: Sequence[Block]) -> None:
        """Record what this step commits and why; tensors are [seats, W]."""
        sitting = {block.seat: block for block in blocks}
        seat, place = reason.nonzero(as_tuple=True)
        facts = torch.stack([seat, place, tokens[seat, place], reason[seat, place]]).tolist()
        for s, position, token, why, sure in zip(*facts, confidence[seat, place].tolist(), strict=True):
            sitting[s].commits.append(Commit(position, token, sitting[s].block_step, REASONS[why], sure))


def stable_seed(*parts: object) -> int:
    """The same number in every process, for a generator."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
