"""The published decoders as plain loops over one row: NumPy, float64, nothing shared with the package.

They are what the engine is compared with, so they are written for reading: a block, a step, a forward, a choice. Where
they leave the published code it is by the engine's laws: the mask is never written, a step commits at least the even
share of what is left (Dream's schedule has its own pace, but at least one), ties go to the lowest position, and a
block that is full ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Canvas = NDArray[np.int64]
Denoise = Callable[[Canvas, int], Array]  # canvas, forwards made before -> logits [positions, V], prompt included
Attend = Callable[[Canvas], list[Array]]  # canvas -> attention [positions, positions] of each layer, prompt included


@dataclass(frozen=True)
class Task:
    """One row to decode. `steps` None: one per position."""

    prompt: tuple[int, ...]
    gen_length: int
    block_length: int
    steps: int | None = None
    mask_id: int = 1

    def blocks(self) -> Iterator[tuple[int, int, int]]:
        """(start, stop, steps) of each block: after a share x of the positions, a share x of the steps is spent."""
        steps = self.gen_length if self.steps is None else self.steps
        for start in range(0, self.gen_length, self.block_length):
            stop = min(start + self.block_length, self.gen_length)
            yield start, stop, steps * stop // self.gen_length - steps * start // self.gen_length


@dataclass
class Trace:
    """A row while it is decoded and what became of it. Positions count from the first generated one, steps from 1.

    steps  forwards, but for those of alternatives that were looked at together
    saw    how often the situations came up that a test of the decoder must have met
    """

    task: Task
    denoise: Denoise
    canvas: Canvas = field(init=False)
    commits: list[tuple[int, int]] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    forwards: int = 0
    steps: int = 0
    saw: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.canvas = np.array([*self.task.prompt, *[self.task.mask_id] * self.task.gen_length])

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(int(each) for each in self.canvas[len(self.task.prompt) :])

    def masked(self, start: int, stop: int) -> list[int]:
        """The masked positions of a block, left to right."""
        return [i for i in range(start, stop) if self.canvas[len(self.task.prompt) + i] == self.task.mask_id]

    def forward(self, until: int | None = None) -> Array:
        """A step: posteriors [gen_length, V] of the answer, or of its positions before `until`, if it ended there."""
        self.steps += 1
        return self.look(self.canvas if until is None else self.canvas[: len(self.task.prompt) + until])

    def look(self, canvas: Canvas) -> Array:
        """Posteriors of the answer on any canvas, the mask ruled out before the softmax."""
        logits = self.denoise(canvas, self.forwards)[len(self.task.prompt) :].astype(np.float64)
        self.forwards += 1
        logits[:, self.task.mask_id] = -np.inf
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def looking(self, attend: Attend, share: float) -> tuple[Array, Array]:
        """Posteriors, and how answer positions attend to each other, averaged over a share of the layers."""
        every, before = attend(self.canvas), len(self.task.prompt)
        last = every[-max(1, round(share * len(every))) :]
        return self.forward(), np.mean(last, axis=0)[before:, before:]

    def commit(self, p: Array, accepted: list[int], topped_up: list[int], **more: list[int]) -> None:
        """Write the most probable tokens; `accepted` by the decoder's own rule, `topped_up` because they were owed.

        more  positions by another reason; with "remask" they become masks
        """
        reasons = {i: reason for reason, places in more.items() for i in places}
        reasons |= dict.fromkeys(accepted, "base") | dict.fromkeys(topped_up, "fallback")
        for i, reason in sorted(reasons.items()):
            word = int(p[i].argmax())
            self.record(i, self.task.mask_id if reason == "remask" else word, reason, float(p[i, word]))
        self.saw["accepted and topped up"] += bool(accepted) and bool(topped_up)
        self.saw["several at once"] += len(accepted) > 1

    def record(self, i: int, token: int, reason: str, confidence: float) -> None:
        """Write one position and note it."""
        self.canvas[len(self.task.prompt) + i] = token
        self.commits.append((self.steps, i))
        self.written.append(token)
        self.reasons.append(reason)
        self.confidences.append(confidence)
        self.saw[reason] += 1


def best(score: dict[int, float], k: int) -> list[int]:
    """The k positions with the largest score, the lower position first among equals."""
    return sorted(score, key=lambda i: (-score[i], i))[: max(k, 0)]


def owed(masks: list[int], steps_left: int) -> int:
    """Commits that a step must make at least for the block to be full in time."""
    return ceil(len(masks) / steps_left)


def schedule(
    task: Task, denoise: Denoise, *, rank_by: str = "confidence", pace: str = "even", last_time: float = 1e-3
) -> Trace:
    """LLaDA's `generate` (pace even) and Dream's `diffusion_generate` (pace linspace; maskgit_plus, margin, entropy).

    Dream's pace is below the even share at first and makes up for it in the last step; only an empty step is topped up.
    """
    trace = Trace(task, denoise)
    for start, stop, steps in task.blocks():
        n = stop - start
        quota = [n // steps + (step < n % steps) for step in range(steps)]
        times = np.linspace(1.0, last_time, steps + 1)
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks:
                break
            p = trace.forward()
            score = {}
            for i in masks:
                second, first = np.sort(p[i])[-2:]
                negative_entropy = (p[i] * np.log(p[i] + 1e-10)).sum()
                score[i] = {"confidence": first, "margin": first - second, "entropy": negative_entropy}[rank_by]
            if pace == "even":
                k = least = quota[step]
            elif step < steps - 1:
                k = int(len(masks) * (1 - times[step + 1] / times[step]))
                least = 1
                trace.saw["rounds to nothing"] += k == 0
                trace.saw["below the even share"] += 0 < k < owed(masks, steps - step)
            else:
                k = least = len(masks)
            order, cut = best(score, len(score)), max(k, least)
            trace.saw[f"{rank_by} {pace}"] += 1
            trace.saw["cut through a tie"] += cut < len(order) and score[order[cut - 1]] == score[order[cut]]
            trace.commit(p, order[:k], order[k:cut])
    return trace


def threshold(task: Task, denoise: Denoise, *, tau: float, strict: bool = False) -> Trace:
    """Fast-dLLM's threshold: all that are sure enough, and the surest in any case."""
    trace = Trace(task, denoise)
    for start, stop, steps in task.blocks():
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks:
                break
            p = trace.forward()
            c = {i: float(p[i].max()) for i in masks}
            sure = [i for i in masks if (c[i] > tau if strict else c[i] >= tau)]
            rest = {i: c[i] for i in masks if i not in sure}
            met = [i for i in masks if c[i] == tau]
            trace.saw["met exactly, refused" if strict else "met exactly, accepted"] += len(met)
            trace.commit(p, sure, best(rest, owed(masks, steps - step) - len(sure)))
    return trace


def factor(task: Task, denoise: Denoise, *, f: float) -> Trace:
    """Fast-dLLM's factor: down the order of confidence, until the n-th is below 1 - f / (n + 1); the first passes."""
    trace = Trace(task, denoise)
    for start, stop, steps in task.blocks():
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks:
                break
            p = trace.forward()
            c = {i: float(p[i].max()) for i in masks}
            passed: list[int] = []
            for n, i in enumerate(best(c, len(c)), start=1):
                if n > 1 and c[i] < 1 - f / (n + 1):
                    trace.saw["stopped at a tie"] += c[i] == c[passed[-1]]
                    trace.saw["stopped at the last"] += n == len(masks)
                    break
                trace.saw["first below its bar"] += c[i] < 1 - f / (n + 1)
                passed.append(i)
            rest = {i: c[i] for i in masks if i not in passed}
            trace.commit(p, passed, best(rest, owed(masks, steps - step) - len(passed)))
    return trace


def klass(
    task: Task,
    denoise: Denoise,
    *,
    tau: float,
    kl_threshold: float,
    history: int,
    strict: bool = True,
    observe: str = "block",
) -> Trace:
    """KLASS: sure, and the last `history` divergences small; nothing in the first `history` - 1 steps of a block."""
    trace = Trace(task, denoise)
    before: Array | None = None
    divergences: list[Array] = []
    for start, stop, steps in task.blocks():
        if observe == "block":
            before, divergences = None, []
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks:
                break
            p = trace.forward()
            previous = np.zeros_like(p) if before is None else before
            divergences.append((p * np.log((p + 1e-12) / (previous + 1e-12))).sum(axis=1))
            before = p
            c = {i: float(p[i].max()) for i in masks}
            sure = [i for i in masks if (c[i] > tau if strict else c[i] >= tau)]
            still = [i for i in sure if all(kl[i] < kl_threshold for kl in divergences[-history:])]
            ready = still if step >= history - 1 else []
            trace.saw["met exactly, accepted"] += sum(c[i] == tau for i in ready)
            trace.saw["met exactly, refused"] += strict and tau in c.values()
            trace.saw["KL blocks"] += len(sure) > len(still)
            trace.saw["KL blocks after the first step"] += len(divergences) > history and len(sure) > len(still)
            trace.saw["only an older KL blocks"] += any(
                divergences[-1][i] < kl_threshold for i in sure if i not in still and len(divergences) > history
            )
            trace.saw["guard blocks"] += len(still) > len(ready)
            trace.saw["inherited history accepts"] += bool(ready) and step < history and start > 0
            rest = {i: c[i] for i in masks if i not in ready}
            trace.commit(p, ready, best(rest, owed(masks, steps - step) - len(ready)))
    return trace


def eb(task: Task, denoise: Denoise, *, bound: float) -> Trace:
    """EB-Sampler: down the order of entropy, while the entropies of all before add up to at most the bound."""
    trace = Trace(task, denoise)
    for start, stop, steps in task.blocks():
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks:
                break
            p = trace.forward()
            entropy = {i: -float((p[i][p[i] > 0] * np.log(p[i][p[i] > 0])).sum()) for i in masks}
            passed, spent = list[int](), 0.0
            for i in best({i: -each for i, each in entropy.items()}, len(masks)):
                if spent > bound:
                    trace.saw["stopped by the bound"] += 1
                    break
                passed.append(i)
                spent += entropy[i]
            rest = {i: -entropy[i] for i in masks if i not in passed}
            trace.commit(p, passed, best(rest, owed(masks, steps - step) - len(passed)))
    return trace


def auto(
    task: Task, denoise: Denoise, *, bound: float, discount: float, least: float, lean: int, ahead: float, add: float,
    observe: str = "block",
) -> Trace:  # fmt: skip
    """A budget of doubts, less for what persists; one more in a lean step; certain positions of later blocks."""
    trace, before, streak = Trace(task, denoise), dict[int, int](), dict[int, int]()
    blocks, block, opened = list(task.blocks()), 0, 1
    deadline = blocks[0][2]
    while trace.masked(0, task.gen_length):
        start, stop, _ = blocks[block]
        masks = trace.masked(start, stop)
        later = trace.masked(stop, blocks[min(block + opened, len(blocks)) - 1][1])
        p = trace.forward()
        for i in trace.masked(0, task.gen_length) if observe == "sequence" or ahead else masks:
            proposed = int(p[i].argmax())
            streak[i] = streak[i] + 1 if before.get(i) == proposed else 1
            trace.saw["a proposal changed"] += before.get(i, proposed) != proposed
            before[i] = proposed
        doubt = {i: 1 - float(p[i].max()) for i in [*masks, *later]}
        cost = {i: each * max(discount ** (streak[i] - 1), least) for i, each in doubt.items()}
        certain = _affordable({i: cost[i] for i in later}, ahead)
        passed = _affordable({i: cost[i] for i in [*masks, *certain]}, bound)
        trace.saw["stopped by the bound"] += len(passed) < len(masks)
        trace.saw["ahead of its block"] += any(i in later for i in passed)
        trace.saw["too doubtful ahead"] += len(certain) < len(later)
        trace.saw["passed at a discount"] += sum(doubt[i] for i in passed) > bound
        rest = {i: -cost[i] for i in masks if i not in passed}
        if len(passed) < lean and rest:
            passed += best(rest, 1)
            trace.saw["one more"] += 1
        rest = {i: each for i, each in rest.items() if i not in passed}
        due = owed(masks, deadline - trace.steps + 1) - sum(i in masks for i in passed)
        trace.commit(p, passed, best(rest, due))
        if ahead and block + opened <= len(blocks):
            first, end, _ = blocks[block + opened - 1]
            opened += end - first - len(trace.masked(first, end)) >= add * (end - first)
        while block + 1 < len(blocks) and not trace.masked(*blocks[block][:2]):
            block, opened = block + 1, max(1, opened - 1)
            deadline = trace.steps + blocks[block][2]
    return trace


def _affordable(cost: dict[int, float], bound: float) -> list[int]:
    """The cheapest positions while their costs sum to at most `bound`."""
    passed, spent = list[int](), 0.0
    for i in best({i: -each for i, each in cost.items()}, len(cost)):
        spent += cost[i]
        if spent > bound:
            break
        passed.append(i)
    return passed


def frechet(task: Task, denoise: Denoise, *, delta: float) -> Trace:
    """Fast-dLLM++: down the order of confidence, while Fréchet's bound less the last one's doubt is above delta."""
    trace = Trace(task, denoise)
    for start, stop, steps in task.blocks():
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks:
                break
            p = trace.forward()
            c = {i: float(p[i].max()) for i in masks}
            passed: list[int] = []
            for i in best(c, len(c)):
                all_right = sum(c[j] for j in [*passed, i]) - len(passed)
                if passed and all_right - (1 - c[i]) <= delta:
                    trace.saw["stopped by the bound"] += 1
                    break
                passed.append(i)
            rest = {i: c[i] for i in masks if i not in passed}
            trace.commit(p, passed, best(rest, owed(masks, steps - step) - len(passed)))
    return trace


def localleap(
    task: Task, denoise: Denoise, *, tau: float, relaxed: float, radius: int, observe: str = "block"
) -> Trace:
    """LocalLeap: anchors, and what is near one and passes a lower bar."""
    trace = Trace(task, denoise)
    for start, stop, steps in task.blocks():
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks:
                break
            p = trace.forward()
            seen = trace.masked(start, task.gen_length) if observe == "sequence" else masks
            anchors = [i for i in seen if p[i].max() >= tau]
            ready = []
            for i in masks:
                near = [a for a in anchors if abs(a - i) <= radius]
                if i in anchors:
                    ready.append(i)
                elif near and p[i].max() >= relaxed:
                    ready.append(i)
                    trace.saw["near an anchor"] += 1
                    trace.saw["near an anchor of the next block"] += min(near) >= stop
                else:
                    trace.saw["sure enough but too far"] += bool(anchors) and p[i].max() >= relaxed
            rest = {i: float(p[i].max()) for i in masks if i not in ready}
            trace.commit(p, ready, best(rest, owed(masks, steps - step) - len(ready)))
    return trace


def slowfast(task: Task, denoise: Denoise, *, tau: float, low: float, k: int) -> Trace:
    """SlowFast: cycles of k slow steps, which settle how far the cycle goes, and fast ones, which fill it."""
    trace = Trace(task, denoise)
    for start, stop, steps in task.blocks():
        first, deadline = start, trace.steps + steps
        while trace.masked(start, stop):
            guesses, end = list[int](), None
            while len(guesses) < k and trace.masked(start, stop):
                guesses.append(_within(trace, first, stop, stop, deadline, tau, low))
                if end is None and len(guesses) > 1 and abs(guesses[-1] - guesses[-2]) <= 1:
                    end = guesses[-1]
            if end is None:
                trace.saw["unsettled"] += len(guesses) > 1
                end = sum(guesses[-2:]) // len(guesses[-2:])
            fast = 0
            while trace.masked(first, end):
                cut = fast > 0 and trace.steps + 1 < deadline
                _within(trace, first, end if cut else stop, end, deadline, tau, low, end if cut else None)
                fast += 1
                trace.saw["fast"] += 1
                trace.saw["cut short"] += cut and end < task.gen_length
            trace.saw["another cycle"] += bool(trace.masked(start, stop))
            first = end
    return trace


def _within(
    trace: Trace, first: int, stop: int, end: int, deadline: int, tau: float, low: float, until: int | None = None
) -> int:
    """A step of SlowFast, which commits before `end`; just behind the last position that is roughly sure."""
    masks = trace.masked(first, stop)
    p = trace.forward(until)
    c = {i: float(p[i].max()) for i in masks}
    high = [i for i in masks if i < end and c[i] >= tau]
    trace.saw["one is high"] += len(high) == 1
    ready = high if len(high) > 1 else best({i: c[i] for i in masks if i < end}, 1)
    rest = {i: c[i] for i in masks if i not in ready}
    trace.commit(p, ready, best(rest, owed(masks, deadline - trace.steps + 1) - len(ready)))
    reached = [i for i in masks if c[i] >= low]
    trace.saw["nothing in reach"] += not reached
    return max(reached, default=first) + 1


def attention(
    task: Task,
    denoise: Denoise,
    *,
    attend: Attend,
    threshold: float = 0.9,
    layers: float = 1.0,
    sequential: bool = False,
) -> Trace:
    """Attn-Sampler: what is sure and more looked at than all that is unsure, else what is looked at most."""
    trace = Trace(task, denoise)
    for start, stop, steps in task.blocks():
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks:
                break
            p, a = trace.looking(attend, layers)
            influence = {j: float(sum(a[i, j] for i in range(start, stop))) for j in masks}
            sure = [i for i in masks if p[i].max() >= threshold]
            unsure = [influence[i] for i in masks if i not in sure]
            ready = [i for i in sure if not unsure or influence[i] > max(unsure)]
            trace.saw["all are sure"] += not unsure and len(masks) > 1
            trace.saw["outshone"] += len(sure) > len(ready)
            ready = [] if sequential else ready
            rest = {i: influence[i] for i in masks if i not in ready}
            trace.commit(p, ready, best(rest, owed(masks, steps - step) - len(ready)))
    return trace


def dapd(task: Task, denoise: Denoise, *, attend: Attend, edge: float, sure: float = 0.9, layers: float = 0.3) -> Trace:
    """DAPD: one after another by weight, leaving out what is joined to one that is taken; late also what is sure."""
    trace = Trace(task, denoise)
    for start, stop, steps in task.blocks():
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks:
                break
            p, a = trace.looking(attend, layers)
            c = {i: float(p[i].max()) for i in masks}
            s = {(i, j): (a[i, j] + a[j, i]) / 2 for i in masks for j in masks if i != j}
            weight = {i: float(sum(s[i, j] for j in masks if j != i)) * c[i] for i in masks}
            ready: list[int] = []
            for i in best(weight, len(masks)):
                if all(s[i, j] <= edge for j in ready):
                    ready.append(i)
            trace.saw["joined to one that is taken"] += len(ready) < len(masks)
            if 2 * len(masks) < stop - start:
                passed = [i for i in masks if c[i] > sure and i not in ready]
                trace.saw["late and sure"] += bool(passed)
                ready += passed
            rest = {i: weight[i] for i in masks if i not in ready}
            trace.commit(p, ready, best(rest, owed(masks, steps - step) - len(ready)))
    return trace


def apd(task: Task, denoise: Denoise, *, verify: Denoise, weight: float, lookahead: int = 100) -> Trace:
    """APD: from left to right while the argmax of the mixed logits is what the model proposes; the first always."""
    trace = Trace(task, denoise)
    before = len(task.prompt)
    for start, stop, steps in task.blocks():
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks:
                break
            own = denoise(trace.canvas, trace.forwards)[before:].copy()
            p = trace.forward()
            draft = trace.canvas[: before + stop].copy()
            for i in masks:
                draft[before + i] = p[i].argmax()
            mixed = weight * own[:stop] + (1 - weight) * verify(draft, 0)[before:]
            mixed[:, task.mask_id] = -np.inf
            ready = [masks[0]]
            for i in masks if mixed[masks[0]].argmax() == p[masks[0]].argmax() else []:
                if i >= masks[0] + lookahead or mixed[i].argmax() != p[i].argmax():
                    break
                ready += [i] if i not in ready else []
            trace.saw["disagree at once"] += mixed[masks[0]].argmax() != p[masks[0]].argmax()
            trace.saw["stopped by the target"] += 1 < len(ready) < len(masks)
            rest = {i: -float(i) for i in masks if i not in ready}
            trace.commit(p, ready, best(rest, owed(masks, steps - step) - len(ready)))
    return trace
