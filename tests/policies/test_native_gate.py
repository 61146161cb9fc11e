"""The gate's kernel for CPUs against `persistence` and `commit_rule`, to the last bit."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tacg.gate import GateConfig, commit_rule, persistence
from tacg.policies import native_gate
from tacg.types import Signals

pytestmark = pytest.mark.skipif(native_gate.kernel()[0] is None, reason=f"no native kernel: {native_gate.kernel()[1]}")


def signals_of(seed: int, rows: int, length: int, *, contrast: bool) -> tuple[Signals, list[Tensor]]:
    """Random signals with ties, and the base decision, the former tokens and their streaks."""
    draw = torch.Generator().manual_seed(seed)

    def some(share: float) -> Tensor:
        return torch.rand(rows, length, generator=draw) < share

    def numbers(high: int) -> Tensor:
        return torch.randint(0, high, (rows, length), generator=draw)

    observed = some(0.8)
    coarse = [(torch.rand(rows, length, generator=draw) * 9).round() / 9 for _ in range(3)]
    sure, reference, readout = (torch.where(observed, each, 0.0) for each in coarse)
    token, step = numbers(3), torch.zeros(rows, dtype=torch.int64)
    signals = Signals(
        observed=observed, eligible=observed & some(0.8), first=observed & some(0.3),
        token=torch.where(observed, token, -1), confidence=sure, step=step, steps=step + 4,
        measured={"reference": reference, "readout": readout} if contrast else {},
    )  # fmt: skip
    return signals, [some(0.5), numbers(3), numbers(5)]


@given(
    seed=st.integers(0, 10_000), rows=st.integers(1, 3), length=st.integers(1, 12),
    contrast=st.booleans(),
    config=st.builds(
        GateConfig, support_lambda=st.sampled_from([0.0, 0.05, 0.3]), tau_floor=st.sampled_from([0.0, 0.5, 2 / 3]),
        tau_escape=st.sampled_from([0.5, 8 / 9, 1.1]), m_base=st.integers(1, 3), m_extra=st.integers(1, 3),
        k_extra=st.integers(0, 4), support=st.sampled_from(["gain", "steady"]), rejoin=st.booleans(),
    ),
)  # fmt: skip
def test_equals_the_commit_rule(seed: int, rows: int, length: int, contrast: bool, config: GateConfig) -> None:
    signals, (ready, tokens, before) = signals_of(seed, rows, length, contrast=contrast)
    assert native_gate.is_native(signals, config)
    plain = commit_rule(signals, ready, persistence(signals, tokens, before), config)
    found = native_gate.gate(signals, ready, tokens, before, config)
    for each in fields(plain):
        assert torch.equal(getattr(found, each.name), getattr(plain, each.name)), each.name


@pytest.mark.parametrize(
    "config",
    [
        GateConfig(support="log_ratio"), GateConfig(preserve_margin=0.1), GateConfig(k_ratio=0.5),
        GateConfig(max_support=0.2),
    ],
)  # fmt: skip
def test_leaves_rarer_knobs_to_the_operations(config: GateConfig) -> None:
    signals, _ = signals_of(0, 2, 5, contrast=True)
    assert native_gate.is_native(signals, GateConfig())
    assert not native_gate.is_native(signals, config)
