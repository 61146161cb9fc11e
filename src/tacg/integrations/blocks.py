"""Blocks of many requests, decided side by side inside somebody else's engine.

Their engine runs the model and keeps the canvas; here are the trajectories. The scan, the policy and the rule that
something is committed in every step are those of our own engine.
"""

from __future__ import annotations

import hashlib
import logging
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tacg.engine.progress import REASONS, reasons
from tacg.engine.sampling import propose
from tacg.policies.state import joined, merged, restart
from tacg.scan import Look, Memory, lowest, observe
from tacg.types import Commit, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Generator, Tensor

    from tacg.integrations.settings import Settings
    from tacg.policies import Policy, State

logger = logging.getLogger(__name__)


class Block:
    """One request's block on its way: all that an engine has to carry from step to step.

    It holds a seat in `Blocks` from its first step on, and gives it back when it is done or simply dropped.

    turn     steps taken
    commits  what was committed, when and why, if that is recorded
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.turn = 0
        self.commits: list[Commit] = []
        self.generator: Generator | None = None
        self.seat: int | None = None
        self.leave: weakref.finalize[[int], Block] | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What a step writes: commit bool [R, W] and tokens int64 [R, W], of use where `commit`.

    failed  rows whose logits were unusable: what was left of their block is filled with a token that says nothing
    """

    commit: Tensor
    tokens: Tensor
    failed: tuple[int, ...]


class Blocks:
    """Trajectories of the blocks in flight, W positions each. A seat is a row of everything here; it is used again.

    Blocks that sit out a step, as engines mix their batches anew each time, keep their trajectory.
    """

    def __init__(
        self, policy: Policy, settings: Settings, width: int, unwritable: Sequence[int], most: int = 1
    ) -> None:
        self.policy, self.settings, self.width, self.most = policy, settings, width, most
        self.unwritable = sorted({*unwritable, *settings.suppress})
        self.filler = next(token for token in range(len(self.unwritable) + 1) if token not in self.unwritable)
        self.free: list[int] = []
        self.memory: Memory | None = None  # made when logits say how large the vocabulary is, and where they are
        self.state: State = {}
        self.turns = self.budget = torch.zeros(0, dtype=torch.int64)  # int64 [seats]: steps taken, steps at most

    @torch.no_grad()
    def step(self, logits: Tensor, masked: Tensor, at_work: Mapping[int, Block]) -> Written:
        """Decide one step of some rows of a batch; their trajectories move on.

        logits   float [R * W, V], aligned. Overwritten where tokens are unwritable; nothing of it is kept
        masked   bool [R, W], positions to be committed
        at_work  the blocks that have masks left, by row; other rows are not looked at
        """
        blocks = list(at_work.values())
        rows = torch.tensor(list(at_work), device=masked.device)
        seats = self._seats(blocks, masked[rows], logits)
        observed = masked.new_zeros(len(self.turns), self.width)
        observed[seats] = masked[rows]
        line = seats.new_zeros(len(observed)).index_copy_(0, seats, rows)
        look = self._look(logits, observed, line, blocks)
        sound = self._sound(look, observed)
        noise = self._noise(observed, blocks)
        signals = observe(look, sound, sound, step=self.turns, steps=self.budget, noise=noise)
        decision, state = self.policy.decide(signals, self.state)
        reason = reasons(signals, decision)
        present = torch.zeros_like(self.turns, dtype=torch.bool).index_fill_(0, seats, True)
        self.state = merged(state, self.state, present)
        among = (seats[:, None] * self.width + torch.arange(self.width, device=seats.device)).view(-1)
        look.follow(reason.view(-1)[look.slots] == 0, among)
        self.turns[seats] += 1
        for block in blocks:
            block.turn += 1
        lost = observed & ~sound
        reason, tokens = reason.masked_fill(lost, Reason.FALLBACK), signals.token.masked_fill(lost, self.filler)
        if self.settings.step_map:
            self._record(reason, tokens, signals.confidence, blocks)
        why = torch.zeros_like(masked, dtype=torch.int64).index_copy_(0, rows, reason[seats])
        failed = tuple(rows[lost[seats].any(dim=1)].tolist())
        return Written(why > 0, torch.zeros_like(why).index_copy_(0, rows, tokens[seats]), failed)

    def release(self, block: Block) -> None:
        """Give a block's seat to the next one."""
        if block.leave is not None:
            block.leave()
            block.seat = block.leave = None

    # -- seats -----------------------------------------------------------------------------------------------------

    def _seats(self, blocks: Sequence[Block], masked: Tensor, logits: Tensor) -> Tensor:
        """int64 [R]; newcomers get one."""
        newcomers = [row for row, block in enumerate(blocks) if block.seat is None]
        if self.memory is None:
            self._refuse_foreign(logits.shape[1])
            kind = self.settings.kind(self.width, logits.shape[1])
            self.memory = Memory(0, self.width, logits.device, kind)
            self.state = self.policy.start(0, self.width, logits.device)
            self.turns, self.budget = (torch.zeros(0, dtype=torch.int64, device=logits.device) for _ in range(2))
        if len(newcomers) > len(self.free):
            self._grow(len(newcomers) - len(self.free))
        for row in newcomers:
            self._sit(blocks[row])
        seats = torch.tensor([block.seat for block in blocks], device=logits.device)
        if newcomers:
            masks = masked[newcomers].sum(dim=1)
            most = self.settings.steps
            self.budget[seats[newcomers]] = masks if most is None else masks.clamp(max=most)
        return seats

    def _refuse_foreign(self, vocabulary: int) -> None:
        """Ids to suppress that the model does not have are told and left out: an engine cannot be stopped any more."""
        foreign = [token for token in self.unwritable if token >= vocabulary]
        if foreign:
            logger.error("`suppress` names %d, but the model has %d ids; it is left out.", foreign[0], vocabulary)
            self.unwritable = [token for token in self.unwritable if token < vocabulary]

    def _sit(self, block: Block) -> None:
        assert self.memory is not None
        seat = min(self.free)
        self.free.remove(seat)
        block.seat, block.leave = seat, weakref.finalize(block, self.free.append, seat)
        block.leave.atexit = False
        block.generator = torch.Generator(device=self.turns.device).manual_seed(block.seed)
        self.turns[seat] = 0
        self.memory.forget(seat)
        restart(self.state, seat, self.policy.start(1, self.width, self.turns.device))

    def _grow(self, more: int) -> None:
        """At least `more` new seats; twice as many as now if that is not beyond the most that are expected."""
        assert self.memory is not None
        have = len(self.turns)
        want = max(have + more, min(2 * have, self.most))
        self.free.extend(range(have, want))
        self.memory.grow(want)
        self.state = joined(self.state, self.policy.start(want - have, self.width, self.turns.device))
        self.turns, self.budget = (torch.cat([each, each.new_zeros(want - have)]) for each in (self.turns, self.budget))

    # -- one step --------------------------------------------------------------------------------------------------

    def _look(self, logits: Tensor, observed: Tensor, line: Tensor, blocks: Sequence[Block]) -> Look:
        """Scan what is masked; row `line[seat]` of the batch sits there."""
        assert self.memory is not None
        logits[:, self.unwritable] = lowest(logits.dtype)
        slots = observed.view(-1).nonzero().squeeze(1)
        places = line[slots // self.width] * self.width + slots % self.width
        proposal = None
        if self.settings.temperature > 0 and len(slots):
            seated = _seated(blocks)
            counts = observed.sum(dim=1)[[seat for seat, _ in seated]].tolist()
            generators = [generator for _, generator in seated]
            proposal = propose(logits[places], counts, generators, self.settings.temperature)
        return Look(logits, slots, self.memory, self.policy.needs, proposal, backend=self.settings.scan, rows=places)

    def _sound(self, look: Look, observed: Tensor) -> Tensor:
        """What is observed without the rows that have unusable logits, which the look then leaves out."""
        if not bool(look.unusable.any()):
            return observed
        sick = torch.zeros_like(observed[:, 0])
        sick[look.slots[look.unusable] // self.width] = True
        look.only(~sick[look.slots // self.width])
        return observed & ~sick[:, None]

    def _noise(self, observed: Tensor, blocks: Sequence[Block]) -> Tensor | None:
        if "noise" not in self.policy.needs:
            return None
        noise = torch.zeros(observed.shape, device=observed.device)
        for seat, generator in _seated(blocks):
            noise[seat] = torch.rand(self.width, generator=generator, device=noise.device)
        return noise

    def _record(self, reason: Tensor, tokens: Tensor, confidence: Tensor, blocks: Sequence[Block]) -> None:
        """Note what this step commits and why; boards are [seats, W]."""
        sitting = {block.seat: block for block in blocks}
        seat, place = reason.nonzero(as_tuple=True)
        facts = torch.stack([seat, place, tokens[seat, place], reason[seat, place]]).tolist()
        for s, position, token, why, sure in zip(*facts, confidence[seat, place].tolist(), strict=True):
            sitting[s].commits.append(Commit(position, token, sitting[s].turn, REASONS[why], sure))


def _seated(blocks: Sequence[Block]) -> list[tuple[int, Generator]]:
    """Seats and random numbers of the blocks, by seat."""
    found = [(each.seat, each.generator) for each in blocks if each.seat is not None and each.generator is not None]
    return sorted(found, key=lambda one: one[0])


def stable_seed(*parts: object) -> int:
    """The same number in every process, for a generator."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
