"""Our commit rule against an independent reading of the paper, over thousands of random trajectories."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tacg import GateConfig, GateState, GateStep, commit_step

from .paper_gate import PaperGate

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Array = np.ndarray[Any, Any]

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
TRAJECTORIES = 800  # for each dtype
TOLERANCE = 1e-5
DECISIONS = ("commit", "base", "extra")
EXACT = ("tokens", "streak")
VALUES = ("confidence", "support", "readiness")
LAYOUTS = ("contiguous", "reused", "row_major", "vocab_first", "strided", "expanded")


@dataclass(frozen=True)
class BaseRule:
    """A base gate as a function of signals; the same code reads our tensors and the oracle's arrays."""

    field: str
    threshold: float

    def __call__(self, signals: Any) -> Any:
        value = getattr(signals, self.field)
        if self.field == "token":
            return value % 2 == 0
        if self.field == "entropy":
            return value <= self.threshold
        return value >= self.threshold

    def slack(self, ours: dict[str, Array], mask: Array) -> Array:
        """How close the closest masked position of each row comes to this rule's own threshold."""
        if self.field == "token":
            return np.full(len(mask), np.inf)
        return np.where(mask, np.abs(ours[self.field] - self.threshold), np.inf).min(axis=1)


def draw_config(rng: np.random.Generator) -> GateConfig:
    m_base = int(rng.integers(1, 5))
    return GateConfig(
        w=float(rng.choice([0.0, 0.3, 1.0, rng.uniform(0, 2)])),
        beta=float(rng.choice([0.0, 1.0, 0.5, 0.95, rng.uniform(0, 1)])),
        support_lambda=float(rng.choice([0.0, 0.05, 0.5, rng.uniform(0, 2)])),
        tau_floor=float(rng.choice([0.0, 0.3, 0.8, rng.uniform(0.2, 0.95)])),
        tau_escape=float(rng.choice([0.9, 0.95, 1.5, rng.uniform(0.5, 0.999)])),
        m_base=m_base,
        m_extra=int(rng.integers(1, m_base + 1)),
        k_extra=int(rng.choice([0, 1, 2, 3, 20], p=[0.2, 0.25, 0.25, 0.2, 0.1])),
        support=str(rng.choice(["gain", "log_ratio"])),
        gamma=float(rng.choice([0.05, 0.3, 1.0])),
        eps=float(rng.choice([0.0, 1e-6, 1e-2])),
        preserve_margin=None if rng.random() < 0.5 else float(rng.uniform(0.05, 0.95)),
    )


class Belief:
    """Logits that move as a denoiser's do: correlated over steps, with a favourite of drifting confidence."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, int, int], twins: bool) -> None:
        batch, length, vocab = shape
        self.rng, self.shape = rng, shape
        self.scale = float(rng.choice([0.3, 1.0, 2.5]))
        self.rho = float(rng.choice([0.5, 0.9, 0.99]))
        self.noise = rng.normal(size=shape) * self.scale
        self.log_odds = rng.uniform(-2.2, 6.9, size=(batch, length))  # confidence 0.1 .. 0.999
        self.favourite = rng.integers(vocab, size=(batch, length))
        self.suppressed = np.zeros(shape, dtype=bool)
        if rng.random() < 0.3:
            self.suppressed = rng.random(shape) < rng.choice([0.1, 0.9])
            kept = rng.integers(vocab, size=(batch, length, 1))
            np.put_along_axis(self.suppressed, kept, False, axis=-1)
        self.tied_tokens = rng.random() < 0.2
        self.twins = twins and length > 1

    def step(self) -> Array:
        rng, (batch, length, vocab) = self.rng, self.shape
        fresh = rng.normal(size=self.shape) * self.scale
        self.noise = self.rho * self.noise + np.sqrt(1 - self.rho**2) * fresh
        # Reflected, not clipped: two positions at one bound would tie in real numbers and differ by rounding.
        walked = self.log_odds + rng.normal(size=(batch, length)) * 0.7
        self.log_odds = 6.9 - np.abs(6.9 - (-2.2 + np.abs(walked + 2.2)))
        moved = rng.random((batch, length)) < 0.1
        self.favourite = np.where(moved, rng.integers(vocab, size=(batch, length)), self.favourite)

        z = self.noise.copy()
        favourite = self.favourite[..., None]
        others = np.where(self.suppressed, 0.0, np.exp(z))
        np.put_along_axis(others, favourite, 0.0, axis=-1)
        total = others.sum(axis=-1)
        level = np.log(np.where(total > 0, total, 1.0)) + self.log_odds
        np.put_along_axis(z, favourite, level[..., None], axis=-1)
        if self.tied_tokens:  # a second token exactly as likely as the favourite, at some positions
            rival = np.where(rng.random((batch, length)) < 0.3, rng.integers(vocab, size=(batch, length)), -1)
            z = np.where(np.arange(vocab) == rival[..., None], level[..., None], z)
        z += rng.normal(size=(batch, length, 1)) * 2  # logits are only known up to a constant
        z[self.suppressed] = -np.inf
        if self.twins:  # positions that cannot be told apart: only the order decides about them
            z[:, 1::2] = z[:, : 2 * (length // 2) : 2]
        return z


def arrange(z: Array, dtype: torch.dtype, layout: str, buffer: Tensor) -> Tensor:
    """The same logits in the memory layouts that callers' models hand out."""
    x = torch.from_numpy(z).to(dtype)
    if layout == "reused":  # a static output buffer: what the state keeps must not alias it
        return buffer.copy_(x)
    if layout == "row_major":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "vocab_first":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "strided":  # every second position and token of a wider tensor
        batch, length, vocab = x.shape
        wide = torch.full((batch, 2 * length, 2 * vocab + 1), float("nan"), dtype=dtype)
        wide[:, ::2, 1::2] = x
        return wide[:, ::2, 1::2]
    if layout == "expanded":  # rows that share memory
        return x[:1].expand(x.shape)
    return x


def next_mask(
    rng: np.random.Generator,
    mask: Array,
    seen: Array,
    commit: Array,
    world: dict[str, float],
) -> Array:
    """Commits leave the mask; a caller may decline one, drop a position, activate one or bring it back."""
    leaves = commit & (rng.random(mask.shape) >= world["decline"])
    leaves |= rng.random(mask.shape) < world["drop"]
    enters = ~mask & (rng.random(mask.shape) < np.where(seen, world["return"], world["activate"]))
    return (mask & ~leaves) | enters


def compare(
    ours: GateStep, paper: dict[str, Array], mask: Array, exempt: Array, context: str, tally: Counter[str]
) -> None:
    """Every field on masked positions; outside the mask, what the docstring promises."""
    got = {name: getattr(ours, name) for name in (*DECISIONS, *EXACT, *VALUES)}
    assert all(got[name].dtype is torch.bool for name in DECISIONS)
    assert all(got[name].dtype is torch.int64 for name in EXACT)
    got = {name: value.numpy() for name, value in got.items()}
    for name in DECISIONS:
        wrong = (got[name] != paper[name]) & ~exempt[:, None]
        assert not wrong.any(), f"{name} differs at {np.argwhere(wrong).tolist()}: {context}"
    for name in EXACT:
        wrong = got[name] != paper[name]
        assert not wrong.any(), f"{name} differs at {np.argwhere(wrong).tolist()}: {context}"
    for name in VALUES:
        worst = np.abs(got[name] - paper[name]).max(initial=0.0)
        assert worst <= TOLERANCE, f"{name} is off by {worst}: {context}"
        assert not got[name][~mask].any(), f"{name} outside the mask: {context}"
    assert (got["commit"] == (got["base"] | got["extra"])).all(), context
    tally["row_steps"] += int(mask.any(axis=1).sum())  # a row with nothing masked is no evidence
    tally["exempt"] += int(exempt.sum())


def run_trajectory(seed: tuple[int, int], dtype: torch.dtype, tally: Counter[str]) -> None:
    rng = np.random.default_rng(seed)
    config = draw_config(rng)
    batch, length = int(rng.integers(1, 5)), int(rng.integers(1, 18))
    vocab = int(rng.choice([2, 3, rng.integers(4, 20), rng.integers(20, 98)]))
    layout = str(rng.choice(LAYOUTS))
    belief = Belief(rng, (batch, length, vocab), twins=dtype is torch.float64 and rng.random() < 0.2)
    rule = None
    if rng.random() < 0.5:
        field = str(rng.choice(["confidence", "margin", "entropy", "token"]))
        rule = BaseRule(field, float(rng.uniform(0.1, 1.5) if field == "entropy" else rng.uniform(0.1, 0.95)))
    often = float(rng.choice([0.1, 0.5, 1.0]))
    world = {
        "decline": float(rng.choice([0.0, 0.5])),
        "drop": float(rng.choice([0.0, 0.05])),
        "activate": float(rng.choice([0.0, 0.2])),
        "return": float(rng.choice([0.0, 0.2])),
    }
    mask = rng.random((batch, length)) < float(rng.choice([0.5, 1.0]))
    poison = rng.random() < 0.5  # only masked positions are read, so the others may hold anything
    seen = np.zeros_like(mask)
    was_masked = np.zeros_like(mask)
    state, oracle = GateState(), PaperGate(config)
    buffer = torch.empty(batch, length, vocab, dtype=dtype)
    tally["trajectories"] += 1

    for t in range(int(rng.integers(3, 8))):
        z = belief.step()
        if poison and layout != "expanded":
            z[~mask] = np.nan
        logits = arrange(z, dtype, layout, buffer)
        before = logits.double().numpy().copy()
        signals: list[Any] = []
        base_gate: Tensor | Callable[[Any], Tensor]
        if rule is None:
            ready = rng.random((batch, length)) < often  # true outside the mask too, where it must not count
            base_gate, base_ready = torch.from_numpy(ready), ready
        else:
            base_gate, base_ready = (lambda s, rule=rule, to=signals: (to.append(s), rule(s))[1]), rule

        ours = commit_step(logits, torch.from_numpy(mask.copy()), base_gate, state, config, everywhere=True)
        paper = oracle.step(before, mask, base_ready)

        context = f"{seed=} {dtype=} step={t} {layout=} shape={(batch, length, vocab)} {rule=} {config=}"
        slack = paper["slack"]
        if rule is not None:
            slack = np.minimum(slack, rule.slack(paper | {"token": paper["tokens"]}, mask))
            (seen_signals,) = signals
            assert (seen_signals.token.numpy()[mask] == paper["tokens"][mask]).all(), context
            for name in ("confidence", "margin", "entropy"):
                off = np.abs(getattr(seen_signals, name).numpy() - paper[name])[mask].max(initial=0.0)
                assert off <= TOLERANCE, f"signal {name} is off by {off}: {context}"
        exempt = (slack < TOLERANCE) & (dtype is not torch.float64)
        compare(ours, paper, mask, exempt, context, tally)
        unchanged = np.array_equal(logits.double().numpy(), before, equal_nan=True)
        assert unchanged, f"logits were changed: {context}"

        judged = mask & ~exempt[:, None]
        for name in ("base", "extra", "hg_blocked", "escaped", "preserved", "floor_blocked", "cap_blocked"):
            tally[name] += int((paper[name] & judged).sum())
        tally["streak > 1"] += int((paper["streak"] > 1)[judged].sum())
        tally["supported"] += int((paper["support"] > 0)[judged].sum())
        tally["suppressed"] += int((np.isneginf(before).any(axis=-1) & judged).sum())
        tally["tied tokens"] += int(((paper["margin"] == 0) & judged).sum())
        tally["late"] += int((mask & ~seen).sum()) if t else 0
        tally["came back"] += int((mask & seen & ~was_masked).sum())
        tally["unsure"] += int((paper["confidence"] < 0.15)[judged].sum())
        tally["sure"] += int((paper["confidence"] > 0.995)[judged].sum())
        tally["tied at the cut"] += int((slack == 0).sum())
        seen |= mask
        was_masked = mask
        committed = ours.commit.numpy()  # ours, so that both sides go on from the same canvas
        mask = next_mask(rng, mask, seen, committed, world)
        tally["declined"] += int((committed & mask).sum())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_trajectories(dtype: torch.dtype, record_property: Callable[[str, object], None]) -> None:
    """Decisions are identical step by step; the cases that float32 cannot tell apart are counted and few."""
    tally: Counter[str] = Counter()
    for n in range(TRAJECTORIES):
        run_trajectory((DTYPES.index(dtype), n), dtype, tally)
    print(dict(tally))
    for name, count in tally.items():
        record_property(name, count)
    assert tally["trajectories"] * len(DTYPES) >= 3000
    assert tally["exempt"] < 0.02 * tally["row_steps"]
    # A comparison in which nothing happens proves nothing: each of the rule's branches must have been taken.
    happened = ("base", "extra", "hg_blocked", "escaped", "preserved", "floor_blocked", "cap_blocked")
    covered = ("streak > 1", "supported", "suppressed", "tied tokens", "unsure", "sure")
    masks = ("late", "came back", "declined")
    for name in (*happened, *covered, *masks):
        assert tally[name] >= 100, f"{name} happened only {tally[name]} times"
    if dtype is torch.float64:
        assert tally["tied at the cut"] >= 50  # never exempt in float64: the lowest position has to win


LN3 = float(np.log(3.0))


@pytest.mark.parametrize("support", ["gain", "log_ratio"])
def test_worked_by_hand(support: str) -> None:
    """Three steps computed on paper, so that the oracle and the package cannot be wrong together."""
    config = GateConfig(
        w=1.0,
        beta=0.5,
        support_lambda=0.5,
        support=support,
        gamma=0.15,
        eps=0.0,
        m_base=3,
        m_extra=2,
        k_extra=1,
        tau_floor=0.5,
        tau_escape=2.0,
    )
    old = 3**1.5 / (1 + 3**1.5)  # the reference after two steps has log-odds 1.5 ln 3
    confidences = [0.75, 0.9, 0.9]
    # q has log-odds 2 ln 9 - ln 3 = ln 27, then 2 ln 9 - 1.5 ln 3 = 2.5 ln 3.
    gains = [0.0, 27 / 28 - 0.75, 3**2.5 / (1 + 3**2.5) - old]
    ratios = [0.0, 0.15, np.log(0.9 / old)]  # log(0.9 / 0.75) = 0.18 is clipped at gamma
    supports = gains if support == "gain" else ratios
    state, oracle = GateState(), PaperGate(config)
    mask = torch.tensor([[True]])
    for t, odds in enumerate([LN3, 2 * LN3, 2 * LN3]):
        logits = torch.tensor([[[0.0, odds]]], dtype=torch.float64)
        ours = commit_step(logits, mask, mask, state, config, everywhere=True)
        paper = oracle.step(logits.numpy(), mask.numpy(), mask.numpy())
        for side in ({name: getattr(ours, name).numpy() for name in (*DECISIONS, *EXACT, *VALUES)}, paper):
            assert side["tokens"].item() == 1
            assert side["streak"].item() == t + 1
            assert side["confidence"].item() == pytest.approx(confidences[t], abs=1e-6)
            assert side["support"].item() == pytest.approx(supports[t], abs=1e-6)
            assert side["readiness"].item() == pytest.approx(confidences[t] + 0.5 * supports[t], abs=1e-6)
            assert (side["base"].item(), side["extra"].item()) == (t == 2, t == 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("changes", "base", "extra"),
    [
        ({}, False, False),
        ({"tau_escape": 0.5}, True, True),
        ({"preserve_margin": 0.0}, True, False),
        ({"m_extra": 1}, False, True),
        ({"m_extra": 1, "tau_floor": 0.51}, False, False),
        ({"m_base": 1}, True, False),
    ],
    ids=str,
)
def test_thresholds_count_as_reached(
    dtype: torch.dtype,
    changes: dict[str, float],
    base: bool,
    extra: bool,
) -> None:
    """All comparisons are >=: a fair coin has c = 0.5 and margin 0 in every dtype, so this is testable."""
    config = GateConfig(tau_floor=0.5, tau_escape=2.0, m_base=2, m_extra=2, k_extra=1).replace(**changes)
    logits = torch.zeros(1, 1, 2, dtype=dtype)
    mask = torch.tensor([[True]])
    for ready in (torch.tensor([[True]]), torch.tensor([[False]])):
        ours = commit_step(logits, mask, ready, GateState(), config, everywhere=True)
        paper = PaperGate(config).step(logits.double().numpy(), mask.numpy(), ready.numpy())
        expected = (base and ready.item(), extra and not (base and ready.item()))
        assert (ours.base.item(), ours.extra.item()) == expected
        assert (paper["base"].item(), paper["extra"].item()) == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ties_go_to_the_lowest(dtype: torch.dtype) -> None:
    """Identical positions and equally likely tokens: the order is the only thing left, and it is fixed."""
    config = GateConfig(tau_floor=0.0, m_base=1, m_extra=1, k_extra=3)
    vector = torch.tensor([0.0, 2.5, 1.0, 2.5, -1.0], dtype=dtype)
    logits = vector.expand(2, 13, 5)
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[1, [0, 2]] = False
    state, oracle = GateState(), PaperGate(config)
    for _ in range(2):
        ours = commit_step(logits, mask, torch.zeros_like(mask), state, config, everywhere=True)
        paper = oracle.step(logits.double().numpy(), mask.numpy(), np.zeros(mask.shape, dtype=bool))
        assert (ours.tokens[mask] == 1).all()
        assert ours.extra.nonzero().tolist() == [[0, 0], [0, 1], [0, 2], [1, 1], [1, 3], [1, 4]]
        assert np.array_equal(ours.extra.numpy(), paper["extra"])
