"""Decoders that ask how sure or how stable posteriors are (entropy, SWD, AHD, SchED), against plain NumPy loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.parity.plain_loops import Array, Attend, Denoise, Task, Trace, best, owed
from tests.parity.test_decoders import SHAPES, Case, ReactiveDenoiser, assert_met, compare, random_prompt, random_task

EPS = 1e-12


def kl(p: Array, q: Array) -> float:
    return float((p * (np.log(p + EPS) - np.log(q + EPS))).sum())


def entropy(task: Task, denoise: Denoise, *, threshold: float) -> Trace:
    """dParallel's rule: little entropy, and the least in any case."""
    trace = Trace(task, denoise)
    for start, stop, steps in task.blocks():
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks:
                break
            p = trace.forward()
            doubt = {i: -float((p[i][p[i] > 0] * np.log(p[i][p[i] > 0])).sum()) for i in masks}
            sure = [i for i in masks if doubt[i] <= threshold]
            rest = {i: -doubt[i] for i in masks if i not in sure}
            trace.commit(p, sure, best(rest, owed(masks, steps - step) - len(sure)))
    return trace


def swd(
    task: Task, denoise: Denoise, *, tau: float, stability_lambda: float, first: str, observe: str = "block"
) -> Trace:
    """SWD over a threshold: confidence times exp(-λ KL(before || now)), before the first step uniform."""
    trace, before = Trace(task, denoise), dict[int, Array]()
    for start, stop, steps in task.blocks():
        if observe == "block":
            before = {}
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks:
                break
            p = trace.forward()
            score = {}
            for i in masks:
                uniform = np.full(p.shape[1], 1 / p.shape[1])
                moved = 0.0 if i not in before and first == "neutral" else kl(before.get(i, uniform), p[i])
                score[i] = float(p[i].max()) * np.exp(-stability_lambda * moved)
                trace.saw["held back"] += score[i] < tau <= p[i].max()
                trace.saw["first is sure"] += i not in before and score[i] >= tau
            before = dict(enumerate(p))
            sure = [i for i in masks if score[i] >= tau]
            rest = {i: score[i] for i in masks if i not in sure}
            passed_over = [i for i in masks if p[i].max() > max(p[j].max() for j in best(score, 1))]
            trace.saw["stable before sure"] += not sure and bool(passed_over)
            trace.commit(p, sure, best(rest, owed(masks, steps - step) - len(sure)))
    return trace


def ahd(task: Task, denoise: Denoise, *, tau: float, window: int, max_drift: float, drift_lambda: float) -> Trace:
    """AHD: the active block by threshold; beyond it whatever is near its own past."""
    trace, past = Trace(task, denoise), list[Array]()
    weights = np.exp(-drift_lambda * np.arange(1, window))
    weights /= weights.sum()
    for start, stop, steps in task.blocks():
        for step in range(steps):
            masks = trace.masked(start, stop)
            if not masks:
                break
            p = trace.forward()
            older = [*past[::-1], *[np.zeros_like(p)] * window]
            drift = {
                i: sum(w * kl(p[i], q[i]) for w, q in zip(weights, older, strict=False))
                for i in trace.masked(stop, task.gen_length)
            }
            past.append(p)
            ahead = [i for i, far in drift.items() if far < max_drift]
            c = {i: float(p[i].max()) for i in masks}
            sure = [i for i in masks if c[i] >= tau]
            trace.saw["ahead"] += len(ahead)
            trace.saw["ahead of the next block"] += any(i >= stop + task.block_length for i in ahead)
            trace.saw["ahead alone"] += bool(ahead) and not sure
            trace.saw["recent calm is not enough"] += any(
                len(past) > window and kl(p[i], past[-2][i]) < max_drift <= far for i, far in drift.items()
            )
            if ahead and not sure:
                sure = best(c, 1)
            rest = {i: c[i] for i in masks if i not in sure}
            trace.commit(p, sure + ahead, best(rest, owed(masks, steps - step) - len(sure)))
    return trace


def sched(
    task: Task, denoise: Denoise, *, tau: float, shape: str, high: float, low: float, curvature: float,
    max_change: float | None,
) -> Trace:  # fmt: skip
    """SchED over a threshold: everything that is left, once its mean logit gap reaches the current bar."""
    trace, last = Trace(task, denoise), dict[int, int]()
    for start, stop, steps in task.blocks():
        for step in range(steps):
            masks, left = trace.masked(start, stop), trace.masked(0, task.gen_length)
            if not masks:
                break
            p = trace.forward()
            two = np.log(np.sort(p[left], axis=1)[:, -2:])
            hour = 1 - len(left) / task.gen_length
            share = {
                "linear": 1 - hour,
                "cosine": (1 + np.cos(np.pi * hour)) / 2,
                "exponential": np.exp(-curvature * hour),
            }
            clear = (two[:, 1] - two[:, 0]).mean() >= low + (high - low) * share[shape]
            changed = sum(last.get(i) != p[i].argmax() for i in left) / len(left)
            still = max_change is None or changed <= max_change
            last = {i: int(p[i].argmax()) for i in left}
            c = {i: float(p[i].max()) for i in masks}
            sure = [i for i in masks if c[i] >= tau]
            trace.saw["clear but changing"] += bool(clear) and not still
            if clear and still:
                trace.commit(p, left, [])
                trace.reasons[-len(left) :] = ["base" if i in sure else "finish" for i in left]
                trace.saw["ends early"] += len(left) > len(sure)
                trace.saw[f"ends by {shape}"] += 1
                return trace
            rest = {i: c[i] for i in masks if i not in sure}
            trace.commit(p, sure, best(rest, owed(masks, steps - step) - len(sure)))
    return trace


LOOPS: dict[str, Callable[..., Trace]] = {"entropy": entropy, "swd": swd, "ahd": ahd, "sched": sched}
COMMON = ("base", "fallback", "several at once")
MET = {
    "entropy": COMMON,
    "swd": (*COMMON, "held back", "first is sure", "stable before sure"),
    "ahd": (*COMMON, "ahead", "ahead of the next block", "ahead alone", "recent calm is not enough"),
    "sched": (*COMMON, "ends early", "clear but changing", "ends by linear", "ends by cosine", "ends by exponential"),
}


@dataclass(frozen=True)
class StabilityCase(Case):
    """A case of one of the loops above."""

    def trace(self, denoise: Denoise, attend: Attend | None = None) -> Trace:
        more = {"observe": self.observe} if self.loop == "swd" else {}
        return LOOPS[self.loop](self.task, denoise, **self.settings, **more)


def random_settings(rng: np.random.Generator, loop: str) -> dict[str, Any]:
    def pick(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    if loop == "entropy":
        return {"threshold": pick(0.1, 0.5, 1.0)}
    tau = {"tau": pick(0.5, 0.7, 0.9)}
    if loop == "swd":
        return tau | {"stability_lambda": pick(0.3, 1.0, 5.0), "first": pick("uniform", "neutral")}
    if loop == "ahd":
        return tau | {
            "window": pick(2, 3, 6), "max_drift": pick(0.001, 0.01, 0.1), "drift_lambda": pick(0.0, 0.5, 2.0)
        }  # fmt: skip
    return tau | {
        "shape": pick("linear", "cosine", "exponential"), "high": pick(2.0, 3.0), "low": pick(0.5, 1.5),
        "curvature": pick(1.0, 4.0), "max_change": pick(None, 0.0, 0.3),
    }  # fmt: skip


@pytest.mark.parametrize("loop", LOOPS)
def test_batched_rows_decode_as_the_plain_loop_does(loop: str) -> None:
    """Seven settings at a time, six rows each, more than fit at once."""
    saw: Counter[str] = Counter()
    for seed in range(5):
        rng, cases = np.random.default_rng(seed), list[Case]()
        for _ in range(7):
            task = random_task(rng)
            case = StabilityCase(task, loop, random_settings(rng, loop), str(rng.choice(["block", "sequence"])))
            cases += [replace(case, task=replace(task, prompt=random_prompt(rng))) for _ in range(6)]
        saw += compare(ReactiveDenoiser(seed), [cases[i] for i in rng.permutation(len(cases))])
    assert saw["rows"] == 210
    assert_met(saw, *SHAPES, *MET[loop])
