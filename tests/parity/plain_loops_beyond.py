"""Decoders that do more than fill one block, as plain loops: they revise, look ahead or open several blocks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tests.parity.plain_loops import Array, Denoise, Task, Trace, best, owed

Candidate = tuple[int, int] | None  # a position and its token; the anchor writes nothing


def hierarchy(task: Task, denoise: Denoise, *, tau: float, low: float, remask: float | None = None) -> Trace:
    """Hierarchy decoding: the surest of each run of masks; with `remask`, doubted tokens count as masks."""
    trace = Trace(task, denoise)
    for start, stop, steps in task.blocks():
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks:
                break
            p = trace.forward()
            c = {i: float(p[i].max()) for i in range(start, stop)}
            doubted = [i for i in c if i not in masks and remask is not None and c[i] < remask]
            pool = sorted(masks + doubted)
            cuts = [0, *(n for n, (i, j) in enumerate(pairwise(pool), start=1) if j > i + 1), len(pool)]
            runs = [pool[a:b] for a, b in pairwise(cuts)]
            trace.saw["several runs"] += len(runs) > 1
            surest = [best({i: c[i] for i in run}, 1)[0] for run in runs]
            chosen = [i for i in pool if c[i] > tau or (i in surest and c[i] > low)]
            if doubted:
                more = best({i: c[i] for i in pool if i not in chosen}, len(doubted) + 1 - len(chosen))
                trace.saw["more written than re-masked"] += len(more)
                chosen += more
            ready = [i for i in masks if i in chosen]
            late = best({i: c[i] for i in masks if i not in chosen}, owed(masks, steps - step) - len(ready))
            edit = [i for i in doubted if i in chosen and p[i].argmax() != trace.tokens[i]]
            back = [i for i in doubted if i not in chosen] if step + 1 < steps else []
            trace.commit(p, ready, late, edit=edit, remask=back)
    return trace


def joint(task: Task, denoise: Denoise, *, tau: float, edit_threshold: float, post_edit_steps: int) -> Trace:
    """JointThreshold: masks above one threshold, other tokens above another; a full block until nothing changes."""
    trace = Trace(task, denoise)
    for start, stop, steps in task.blocks():
        passes = 0
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks and passes == post_edit_steps:
                break
            passes += not masks
            p = trace.forward()
            c = {i: float(p[i].max()) for i in range(start, stop)}
            other = [i for i in c if i not in masks and p[i].argmax() != trace.tokens[i]]
            edit = [i for i in other if c[i] > edit_threshold]
            trace.saw["edit refused"] += len(other) > len(edit)
            ready = [i for i in masks if c[i] > tau]
            late = best({i: c[i] for i in masks if i not in ready}, owed(masks, steps - step) - len(ready))
            trace.commit(p, ready, late, edit=edit)
            if not masks:
                trace.saw["edited when full" if edit else "read again, nothing to edit"] += 1
                if not edit:
                    break
    return trace


def lopa(task: Task, denoise: Denoise, *, tau: float, branches: int, sure_by: str, add: float | None = None) -> Trace:
    """LoPA: commit above a threshold, then a forward of that and of each of the next positions; the surest goes on."""
    trace, blocks = Trace(task, denoise), list(task.blocks())
    block, opened, deadline = 0, 1, blocks[0][2]
    candidates: list[Candidate] = []
    judged: list[int] = []

    def enter_next() -> None:
        nonlocal block, opened, deadline
        while block + 1 < len(blocks) and not trace.masked(*blocks[block][:2]):
            block, opened = block + 1, max(1, opened - 1)
            deadline = trace.steps + blocks[block][2]

    def last_open() -> int:
        return min(block + opened, len(blocks)) - 1

    while trace.masked(0, task.gen_length):
        p, extra = _surest(trace, candidates, judged, sure_by) if candidates else (trace.look(trace.canvas), None)
        if candidates:
            trace.saw["a branch wins" if extra else "the anchor wins"] += 1
        if extra:  # which may fill the block, and then this is the first step of the next one
            trace.canvas[len(task.prompt) + extra[0]] = extra[1]
            enter_next()
        trace.steps += 1
        if extra:
            trace.record(*extra, "branch", 0.0)
        start, stop, _ = blocks[block]
        active, eligible = trace.masked(start, stop), trace.masked(start, blocks[last_open()][1])
        ready = [i for i in eligible if p[i].max() > tau]
        due = owed(active, deadline - trace.steps + 1) - sum(i in active for i in ready)
        ready += best({i: _rank(p[i], sure_by) for i in active if i not in ready}, due)
        rest = {i: _rank(p[i], sure_by) for i in eligible if i not in ready}
        candidates = [None, *((i, int(p[i].argmax())) for i in best(rest, branches))] if rest else []
        trace.saw["fewer branches"] += 0 < len(rest) < branches
        trace.commit(p, ready, [])
        if add is not None and block + opened <= len(blocks):
            first, end, _ = blocks[last_open()]
            opened += end - first - len(trace.masked(first, end)) >= add * (end - first)
            trace.saw["several blocks open"] += opened > 1
        judged = trace.masked(start, blocks[last_open()][1])
        enter_next()
    return trace


def _rank(p: Array, sure_by: str) -> float:
    return float((p[p > 0] * np.log(p[p > 0])).sum() if sure_by == "entropy" else p.max())


def _surest(trace: Trace, candidates: list[Candidate], judged: list[int], sure_by: str) -> tuple[Array, Candidate]:
    """The candidate after which what is left is surest on average, with its posteriors."""
    scored = []
    for extra in candidates:
        canvas = trace.canvas.copy()
        if extra:
            canvas[len(trace.task.prompt) + extra[0]] = extra[1]
        p = trace.look(canvas)
        left = [_rank(p[i], sure_by) for i in judged if not extra or i != extra[0]]
        scored.append((float(np.mean(left)) if left else 1.0, p, extra))
    _, p, extra = max(scored, key=lambda each: each[0])
    return p, extra
