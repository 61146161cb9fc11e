"""The engine, many rows at once, against the plain loops, one row at a time: same tokens, same order, same forwards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request
from tacg.models.base import ModelSpec, Span
from tacg.models.scripted import ScriptedDenoiser
from tacg.policies import get_policy
from tests.parity import plain_loops, plain_loops_beyond
from tests.parity.plain_loops import Array, Canvas, Task, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tacg.types import Output

MASK, SIZE = 1, 20
LOOPS = (
    *("schedule", "threshold", "factor", "klass", "eb", "auto", "frechet"),
    *("localleap", "hierarchy", "slowfast", "joint", "lopa"),
    *("attention", "dapd", "apd"),
)
POLICY = {"threshold": "confidence", "factor": "confidence"}  # the others are called as their loop is
KNOB = {"tau": "threshold", "f": "factor"}


class ReactiveDenoiser:
    """A toy network: logits are a fixed function of the row's canvas, so one wrong commit changes all that follows.

    A position feels the tokens up to three places away strongly and the whole canvas weakly; masks say nothing. So
    confidence grows as neighbours are committed, and far commits move posteriors by a little: KL on both sides of a
    threshold. In float64, so that rounding cannot explain a difference. Attention is sharp, and goes by the logits.
    """

    shows_attention = True

    def __init__(self, seed: int, *, gain: float = 2.2) -> None:
        rng = np.random.default_rng(seed)
        self.embedding = rng.normal(size=(SIZE, 12))
        self.embedding[MASK] = 0
        self.near = {shift: rng.normal(size=(12, 12)) / 4 for shift in (-3, -2, -1, 1, 2, 3)}
        self.far = rng.normal(size=(12, 12)) / 4
        self.place = rng.normal(size=(64, 12)) / 2
        self.head = rng.normal(size=(12, SIZE)) * gain
        self.spec = ModelSpec("reactive", "reactive", SIZE, MASK, (0,), (MASK,), 64)
        self.device = torch.device("cpu")

    def logits(self, canvas: Canvas, forwards: int = 0) -> Array:
        """Of one row, [positions, V]; the number of earlier forwards does not matter."""
        x = self.embedding[canvas]
        state = self.place[: len(canvas)] + x.mean(axis=0) @ self.far
        for shift, weight in self.near.items():
            low, high = max(0, -shift), len(canvas) - max(0, shift)
            if low < high:
                state[low:high] += x[low + shift : high + shift] @ weight
        return np.tanh(state) @ self.head

    def attention(self, canvas: Canvas) -> list[Array]:
        """Of one row, three layers [positions, positions]."""
        z = self.logits(canvas)
        scores = [z[:, 4 * n : 4 * n + 4] @ z[:, 4 * n + 4 : 4 * n + 8].T / 9 for n in range(3)]
        weights = [np.exp(each - each.max(axis=1, keepdims=True)) for each in scores]
        return [each / each.sum(axis=1, keepdims=True) for each in weights]

    def __call__(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        for span, row in zip(spans, tokens.split([len(span) for span in spans]), strict=True):
            asked = span.attention
            for layer, weights in enumerate(self.attention(row.numpy()) if asked else ()):
                if asked is not None and asked.wants(layer, 3):
                    here = slice(asked.start, asked.stop)
                    asked.add(torch.from_numpy(weights[None, here, here]))
        rows = [torch.from_numpy(self.logits(row.numpy())) for row in tokens.split([len(span) for span in spans])]
        return torch.cat(rows)[select]


VERIFIER = ReactiveDenoiser(1000)


@dataclass(frozen=True)
class Case:
    """One row: the task, the plain loop and its arguments; and how the engine is asked for the same."""

    task: Task
    loop: str
    settings: dict[str, Any]
    observe: str = "block"

    def request(self) -> Request:
        policy = get_policy(
            POLICY.get(self.loop, self.loop), **{KNOB.get(key, key): value for key, value in self.settings.items()}
        )
        decode = Decode(
            gen_length=self.task.gen_length,
            block_length=self.task.block_length,
            steps=self.task.steps,
            early_stop=False,
            observe=self.observe,
        )
        return Request(self.task.prompt, policy, decode)

    def trace(self, denoise: plain_loops.Denoise, attend: plain_loops.Attend | None = None) -> Trace:
        more: dict[str, Any] = {"observe": self.observe} if self.loop in ("klass", "localleap", "auto") else {}
        more |= {"attend": attend} if self.loop in ("attention", "dapd") else {}
        more |= {"verify": VERIFIER.logits} if self.loop == "apd" else {}
        loop = getattr(plain_loops, self.loop, None) or getattr(plain_loops_beyond, self.loop)
        return loop(self.task, denoise, **self.settings, **more)


def random_prompt(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(each) for each in rng.choice(np.delete(np.arange(SIZE), MASK), size=rng.integers(1, 8)))


def random_task(rng: np.random.Generator) -> Task:
    """Lengths, blocks (whole sequence included, last block often shorter) and step budgets of every kind."""
    gen_length = int(rng.integers(1, 33))
    block_length = int(rng.choice([1, 3, 5, 8, 16, 64], p=[0.04, 0.16, 0.2, 0.25, 0.15, 0.2]))
    fewest = -(-gen_length // block_length)
    steps = [None, int(rng.integers(fewest, gen_length + 1)), gen_length + int(rng.integers(1, 9))]
    return Task(random_prompt(rng), gen_length, block_length, steps[rng.choice(3, p=[0.4, 0.5, 0.1])])


def random_case(rng: np.random.Generator, loop: str, taus: Sequence[float]) -> Case:
    """A random task under random settings of a decoder."""
    observe = str(rng.choice(["block", "sequence"]))
    tau = {"tau": float(rng.choice(taus))}
    sure = {**tau, "strict": bool(rng.integers(2))}
    settings: dict[str, Any] = {
        "schedule": {
            "rank_by": str(rng.choice(["confidence", "margin", "entropy"])),
            "pace": str(rng.choice(["even", "linspace"])),
        },
        "threshold": sure,
        "factor": {"f": float(rng.choice([0.3, 0.7, 1.0, 1.6]))},
        "eb": {"bound": float(rng.choice([0.0, 0.1, 0.5, 1.5]))},
        "auto": {
            "bound": float(rng.choice([0.0, 0.1, 0.5, 1.5])),
            "discount": float(rng.choice([0.3, 0.5, 1.0])),
            "least": float(rng.choice([0.0, 0.125, 0.5])),
            "lean": int(rng.choice([0, 1, 3])),
            "ahead": float(rng.choice([0.0, 0.3, 1.0])),
            "add": float(rng.choice([0.1, 0.5, 1.0])),
        },
        "frechet": {"delta": float(rng.choice([-0.5, 0.0, 0.25, 0.6]))},
        "apd": {"weight": float(rng.choice([0.6, 0.8, 0.9])), "lookahead": int(rng.choice([2, 100]))},
        "attention": {
            "threshold": sure["tau"],
            "layers": float(rng.choice([1.0, 0.3])),
            "sequential": bool(rng.random() < 0.2),
        },
        "dapd": {
            "edge": float(rng.choice([0.01, 0.03, 0.1])),
            "sure": float(rng.choice([0.5, 0.9])),
            "layers": float(rng.choice([1.0, 0.3])),
        },
        "localleap": {**tau, "relaxed": float(rng.choice([0.2, 0.4])), "radius": int(rng.integers(4))},
        "hierarchy": {**tau, "low": float(rng.choice([0.3, 0.5])), "remask": rng.choice([None, 0.3, 0.5])},
        "slowfast": {**tau, "low": float(rng.choice([0.3, 0.5])), "k": int(rng.integers(1, 5))},
        "joint": {
            **tau,
            "edit_threshold": float(rng.choice([0.0, 0.5])),
            "post_edit_steps": int(rng.choice([0, 1, 2, 16])),
        },
        "lopa": {
            **tau,
            "branches": int(rng.integers(1, 5)),
            "sure_by": str(rng.choice(["entropy", "confidence"])),
            "add": rng.choice([None, 0.1, 0.5]),
        },
        "klass": {
            **sure,
            "kl_threshold": float(rng.choice([0.001, 0.01, 0.05, 0.2, 26.5])),  # 26.5: first observations may pass
            "history": int(rng.integers(1, 4)),
        },
    }[loop]
    return Case(random_task(rng), loop, settings, observe)


def random_batch(
    rng: np.random.Generator, loops: Sequence[str], *, rows: int, taus: Sequence[float] = (0.5, 0.6, 0.7, 0.8, 0.9)
) -> list[Case]:
    """A case for each of `loops`, each with `rows` prompts, in random order.

    Rows with equal settings share the engine's state tensors; more of them than fit at once take over used places.
    """
    cases = []
    for loop in loops:
        case = random_case(rng, loop, taus)
        cases += [replace(case, task=replace(case.task, prompt=random_prompt(rng))) for _ in range(rows)]
    return [cases[i] for i in rng.permutation(len(cases))]


def check(case: Case, output: Output, trace: Trace) -> None:
    """One row of the engine is one run of the plain loop."""
    ours = [(each.step, each.position, each.token, each.reason) for each in output.commits]
    happened = sorted(zip(trace.commits, trace.written, trace.reasons, trace.confidences, strict=True))
    assert ours == [(step, i, token, reason) for (step, i), token, reason, _ in happened], case
    assert output.tokens == trace.tokens, case
    assert (output.steps, output.forwards) == (trace.steps, trace.forwards), case
    assert [each.confidence for each in output.commits] == pytest.approx([each[3] for each in happened], abs=1e-6), case


def compare(
    model: ReactiveDenoiser | ScriptedDenoiser,
    cases: list[Case],
    alone: Callable[[Case], plain_loops.Denoise] | None = None,
    *,
    max_rows: int = 9,
) -> Counter[str]:
    """Decode the cases together and alone; returns what the plain loops met on the way.

    alone  the model as a plain loop sees it, by case (None: the reactive one, which is the same for all)
    """
    outputs = Engine(model, max_rows=max_rows, verifier=VERIFIER).generate([case.request() for case in cases])
    saw: Counter[str] = Counter()
    for case, output in zip(cases, outputs, strict=True):
        trace = case.trace(alone(case)) if alone else case.trace(model.logits, model.attention)
        check(case, output, trace)
        task = case.task
        saw += trace.saw
        saw["rows"] += 1
        saw["last block is shorter"] += task.gen_length > task.block_length and task.gen_length % task.block_length > 0
        saw["whole sequence"] += task.gen_length <= task.block_length
        saw["budget below length"] += task.steps is not None and task.steps < task.gen_length
        saw["budget above length"] += task.steps is not None and task.steps > task.gen_length
    return saw


def assert_met(saw: Counter[str], *situations: str, times: int = 5) -> None:
    """Agreement means little in situations that never came up."""
    assert not [each for each in situations if saw[each] < times], saw


SHAPES = ("last block is shorter", "whole sequence", "budget below length", "budget above length")
MET = {
    "schedule": (
        "confidence even",
        "margin even",
        "entropy even",
        "confidence linspace",
        "margin linspace",
        "entropy linspace",
        "rounds to nothing",
        "below the even share",
    ),
    "threshold": ("base", "fallback", "several at once", "accepted and topped up"),
    "factor": ("base", "fallback", "several at once", "first below its bar", "stopped at the last"),
    "eb": ("base", "fallback", "several at once", "stopped by the bound"),
    "auto": (
        "base",
        "fallback",
        "several at once",
        "stopped by the bound",
        "a proposal changed",
        "passed at a discount",
        "one more",
        "ahead of its block",
        "too doubtful ahead",
    ),
    "frechet": ("base", "fallback", "several at once", "stopped by the bound"),
    "apd": ("base", "fallback", "several at once", "disagree at once", "stopped by the target"),
    "attention": ("base", "fallback", "several at once", "accepted and topped up", "all are sure", "outshone"),
    "dapd": ("base", "fallback", "several at once", "joined to one that is taken", "late and sure"),
    "localleap": ("base", "fallback", "near an anchor", "near an anchor of the next block", "sure enough but too far"),
    "hierarchy": ("base", "fallback", "several runs", "remask", "edit", "more written than re-masked"),
    "slowfast": (
        "base",
        "fallback",
        "one is high",
        "nothing in reach",
        "unsettled",
        "fast",
        "cut short",
        "another cycle",
    ),
    "joint": ("base", "fallback", "edit", "edit refused", "edited when full", "read again, nothing to edit"),
    "lopa": ("base", "a branch wins", "the anchor wins", "fewer branches", "several blocks open"),
    "klass": (
        "base",
        "fallback",
        "several at once",
        "accepted and topped up",
        "KL blocks",
        "KL blocks after the first step",
        "only an older KL blocks",
        "guard blocks",
        "inherited history accepts",
    ),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_batched_rows_decode_as_the_plain_loop_does(loop: str) -> None:
    """One decoder under many settings; the canvas answers back, so every commit has to be right."""
    saw: Counter[str] = Counter()
    for seed in range(6):
        batch = random_batch(np.random.default_rng(seed), [loop] * 8, rows=6)
        saw += compare(ReactiveDenoiser(seed), batch)
    assert saw["rows"] == 288
    assert_met(saw, *SHAPES, *MET[loop])


def test_decoders_do_not_disturb_each_other_in_one_batch() -> None:
    """All decoders at once, rows joining as others leave."""
    saw: Counter[str] = Counter()
    for seed in range(100, 103):
        batch = random_batch(np.random.default_rng(seed), LOOPS * 2, rows=6)
        saw += compare(ReactiveDenoiser(seed), batch, max_rows=13)
    assert saw["rows"] == 36 * len(LOOPS)
    assert_met(saw, "base", "fallback", "KL blocks", "several at once")


@pytest.mark.parametrize("observe", ["block", "sequence"])
def test_a_row_inherits_nothing_from_the_row_before_it(observe: str) -> None:
    """Forty rows through three places. With this KL threshold a sure first observation is refused, a second is not.

    So a place that still knew its last row would accept at once.
    """
    rng = np.random.default_rng(7)
    settings = {"tau": 0.5, "kl_threshold": 26.5, "history": 1}
    task = Task((), 8, 8)
    cases = [Case(replace(task, prompt=random_prompt(rng)), "klass", settings, observe) for _ in range(40)]
    assert_met(compare(ReactiveDenoiser(7), cases, max_rows=3), "base", "fallback", "KL blocks", times=20)


def tied_scripts(rng: np.random.Generator, rows: int, length: int) -> list[Array]:
    """Trajectories that draw from five posteriors and often stay: ties between positions, KL of exactly zero.

    One posterior is exactly 0.5, 0.5 (a threshold can be met exactly), one is certain, one would rather be a mask.
    """
    palette = rng.normal(size=(5, SIZE)) * 1.5
    palette[0], palette[1] = -2000, -2000
    palette[0, [4, 9]] = palette[1, 7] = 0
    palette[2, MASK] = 9
    scripts = []
    for _ in range(rows):
        steps = [rng.integers(5, size=length)]
        for _ in range(length):
            steps.append(np.where(rng.random(length) < 0.7, steps[-1], rng.integers(5, size=length)))
        scripts.append(palette[np.stack(steps)])
    return scripts


@pytest.mark.parametrize("loop", LOOPS[:4])  # those that compare one number with another
def test_ties_and_exact_thresholds(loop: str) -> None:
    """Equal confidences go to the lowest position; `>` and `>=` part where the threshold is met exactly."""
    saw: Counter[str] = Counter()
    for seed in range(5):
        rng = np.random.default_rng(seed)
        scripts = tied_scripts(rng, SIZE, length=40)
        batch = [  # the first token of a prompt is the number of its script
            replace(case, task=replace(case.task, prompt=(number, *case.task.prompt)))
            for number, case in enumerate(random_batch(rng, [loop] * 4, rows=SIZE // 4, taus=(0.5, 1.0)))
        ]

        def alone(case: Case, scripts: list[Array] = scripts) -> plain_loops.Denoise:
            script = scripts[case.task.prompt[0]]
            return lambda canvas, forwards: script[forwards, : len(canvas)]

        model = ScriptedDenoiser([torch.from_numpy(script) for script in scripts], mask_id=MASK)
        saw += compare(model, batch, alone, max_rows=7)
    met = {
        "schedule": ("cut through a tie",),
        "threshold": ("met exactly, accepted", "met exactly, refused"),
        "factor": ("stopped at a tie",),
        "klass": ("met exactly, accepted", "met exactly, refused", "KL blocks"),
    }
    assert_met(saw, *met[loop])


@pytest.mark.parametrize("observe", ["block", "sequence"])
def test_klass_without_its_kl_is_strict_confidence(observe: str) -> None:
    """How the TACG authors make their baseline: history 1 and a KL threshold that nothing exceeds."""
    saw: Counter[str] = Counter()
    for seed in range(3):
        model = ReactiveDenoiser(seed)
        batch = [
            replace(case, observe=observe, settings={"tau": case.settings["tau"], "strict": True})
            for case in random_batch(np.random.default_rng(seed), ["threshold"] * 4, rows=5)
        ]
        off = {"kl_threshold": 1e6, "history": 1}
        klass = [replace(case, loop="klass", settings=case.settings | off) for case in batch]
        saw += compare(model, klass)
        one = Engine(model, max_rows=7).generate([case.request() for case in klass])
        two = Engine(model, max_rows=7).generate([case.request() for case in batch])
        assert [replace(each, policy="") for each in one] == [replace(each, policy="") for each in two]
    assert_met(saw, "base", "fallback", "several at once")
    assert saw["KL blocks"] == 0


def test_following_the_whole_answer_changes_klass() -> None:
    """The two ways to observe are not the same decoder, or comparing them with one loop each would say nothing."""
    differ = 0
    for seed in range(5):
        model, rng = ReactiveDenoiser(seed), np.random.default_rng(seed)
        settings = {"tau": 0.5, "kl_threshold": 0.05, "history": 2}
        task = Task((), 32, 8)
        by_block = [Case(replace(task, prompt=random_prompt(rng)), "klass", settings) for _ in range(6)]
        by_sequence = [replace(case, observe="sequence") for case in by_block]
        compare(model, by_block + by_sequence)
        for one, two in zip(by_block, by_sequence, strict=True):
            differ += one.trace(model.logits).commits != two.trace(model.logits).commits
    assert differ >= 20


def test_linspace_keeps_the_pace_of_dream() -> None:
    """Dream commits int(masks * (1 - s/t)) a step and the rest in the last, where LLaDA commits three in each."""
    [output] = Engine(ReactiveDenoiser(0)).generate(
        [Case(Task((2,), 24, 24, steps=8), "schedule", {"pace": "linspace"}).request()]
    )
    count = Counter(commit.step for commit in output.commits)
    assert [count[step] for step in range(1, 9)] == [2, 3, 3, 3, 3, 3, 3, 4]
