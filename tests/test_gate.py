"""`commit_step` as others will use it: inputs, errors, edges. The rule itself is proven in parity/ and property/."""

from __future__ import annotations

import pytest
import torch

from tacg import GateConfig, GateState, LogitsError, Needs, TacgError, commit_step
from tests.worlds import trajectory

ALL = torch.ones(1, 4, dtype=torch.bool)
NONE = torch.zeros(1, 4, dtype=torch.bool)


def sure(confidences: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Logits [1, L, 3] whose token 2 has these probabilities."""
    p = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([(1 - p) / 2, (1 - p) / 2, p], dim=-1).log()[None].to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_any_float_dtype_is_computed_in_float32_at_least(dtype: torch.dtype) -> None:
    step = commit_step(sure([0.99, 0.9, 0.5, 0.4], dtype), ALL, ALL, GateState(), GateConfig())
    assert step.confidence.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert step.tokens.dtype == step.streak.dtype == torch.int64
    assert step.commit.tolist() == [[True, False, False, False]], "only the escape passes a streak of one"


def test_the_history_gate_waits_then_lets_pass() -> None:
    state, config = GateState(), GateConfig(m_base=3, k_extra=0)
    commits = [bool(commit_step(sure([0.9] * 4), ALL, ALL, state, config).commit.all()) for _ in range(4)]
    assert commits == [False, False, True, True]


def test_margin_preserves_a_base_decision() -> None:
    logits = sure([0.9, 0.9, 0.9, 0.6])
    step = commit_step(logits, ALL, ALL, GateState(), GateConfig(k_extra=0, preserve_margin=0.7))
    assert step.base.tolist() == [[True, True, True, False]]


def test_variants_of_the_released_code() -> None:
    logits, young = sure([0.9, 0.85, 0.85, 0.6]), GateConfig(m_extra=1, k_extra=3)
    base = torch.tensor([[True, False, False, False]])

    def promoted(config: GateConfig) -> list[int]:
        return commit_step(logits, ALL, base, GateState(), config).extra[0].nonzero().squeeze(1).tolist()

    assert promoted(young) == [0, 1, 2], "the paper: what the History Gate holds back may still be promoted"
    assert promoted(young.replace(rejoin=False)) == [1, 2]
    assert promoted(young.replace(k_ratio=0.25)) == [0], "a quarter of one base proposal, rounded up"
    assert promoted(young.replace(k_ratio=2.0)) == [0, 1]


@pytest.mark.usefixtures("_without_compiler")
def test_what_support_cannot_decide_is_not_measured() -> None:
    """One promotion, ten candidates that gain a little: when the reference is known, two are left in the contest."""
    config = GateConfig(tau_floor=0.3, m_extra=1, k_extra=1, support_lambda=0.3, w=1.0)
    before = [0.80, 0.79, 0.75, 0.74, 0.72, 0.70, 0.69, 0.66, 0.65, 0.61]
    mask = torch.ones(1, len(before), dtype=torch.bool)
    told = {}
    for everywhere in (True, False):
        state = GateState()
        commit_step(sure(before), mask, ~mask, state, GateConfig(tau_floor=1.0), everywhere=everywhere)
        told[everywhere] = commit_step(
            sure([p + 0.02 for p in before]), mask, ~mask, state, config, everywhere=everywhere
        )
    assert torch.equal(told[True].commit, told[False].commit)
    assert int((told[True].support > 0).sum()) == 10
    assert int((told[False].support > 0).sum()) == 2


def test_sudden_peaks_can_be_distrusted() -> None:
    """Position 0 jumps from 0.4 to 0.86, position 1 has been at 0.85 all along."""
    before, after = sure([0.4, 0.85, 0.4, 0.4]), sure([0.86, 0.85, 0.4, 0.4])

    def promoted(**knobs: object) -> list[int]:
        state, config = GateState(), GateConfig(m_extra=2, k_extra=1, support_lambda=0.5).replace(**knobs)
        commit_step(before, ALL, NONE, state, config.replace(k_extra=0))
        return commit_step(after, ALL, NONE, state, config).extra[0].nonzero().squeeze(1).tolist()

    assert promoted() == [0]
    assert promoted(support="steady") == [1]
    assert promoted(max_support=0.2) == [1]
    assert promoted(max_support=0.9) == [0]


def test_ties_go_to_the_lowest_position() -> None:
    logits = sure([0.85, 0.9, 0.9, 0.9])
    step = commit_step(logits, ALL, NONE, GateState(), GateConfig(k_extra=2, m_extra=1))
    assert step.extra.tolist() == [[False, True, True, False]]
    assert commit_step(torch.zeros(1, 4, 5), ALL, NONE, GateState()).tokens.tolist() == [[0, 0, 0, 0]]


def test_only_masked_positions_are_read() -> None:
    logits = sure([0.99, 0.99, 0.99, 0.99])
    logits[0, 1] = torch.nan
    mask = torch.tensor([[True, False, True, True]])
    step = commit_step(logits, mask, ALL, GateState())
    assert step.commit.tolist() == mask.tolist()
    outside = (step.tokens[0, 1], step.streak[0, 1], step.confidence[0, 1], step.support[0, 1], step.readiness[0, 1])
    assert [float(each) for each in outside] == [-1, 1, 0, 0, 0]


def test_an_empty_mask_is_fine() -> None:
    state = GateState()
    assert not commit_step(sure([0.99] * 4), NONE, ALL, state).commit.any()
    assert commit_step(sure([0.99] * 4), ALL, ALL, state).commit.all()


@pytest.mark.parametrize(
    ("value", "words"), [(torch.nan, "nan"), (torch.inf, "inf"), (-torch.inf, "only -inf")], ids=["nan", "inf", "-inf"]
)
def test_unusable_rows_are_named(value: float, words: str) -> None:
    logits = trajectory(0, 1, 3, 4, 5, dtype=torch.float32)[0]
    logits[2, 1] = value
    state = GateState()
    with pytest.raises(LogitsError, match=f"row 2, position 1 hold {words}") as caught:
        commit_step(logits, torch.ones(3, 4, dtype=torch.bool), torch.ones(3, 4, dtype=torch.bool), state)
    assert caught.value.where == [(2, 1)]
    assert state.tokens is None, "a refused step leaves no trace"


def test_suppressed_tokens_have_no_share() -> None:
    """-inf at a token is the same as a vocabulary without it, step after step."""
    frames = trajectory(4, 5, 2, 6, 9)
    open_, closed = GateState(), GateState()
    mask = torch.ones(2, 6, dtype=torch.bool)
    config = GateConfig(support_lambda=1.0, m_extra=1, tau_floor=0.2)
    for frame in frames:
        hidden = frame.clone()
        hidden[..., 5:] = -torch.inf
        one = commit_step(frame[..., :5], mask, ~mask, open_, config)
        two = commit_step(hidden, mask, ~mask, closed, config)
        assert torch.equal(one.tokens, two.tokens)
        assert torch.equal(one.extra, two.extra)
        assert torch.allclose(one.readiness, two.readiness, atol=1e-12)


def test_a_token_that_comes_back_from_suppression_stays_a_number() -> None:
    frames = trajectory(5, 4, 1, 4, 6, dtype=torch.float32)
    frames[1, ..., 2] = -torch.inf
    state = GateState()
    for frame in frames:
        step = commit_step(frame, ALL, NONE, state, GateConfig(w=3.0))
        assert step.readiness.isfinite().all()


def test_a_position_that_returns_starts_neutral() -> None:
    state = GateState()
    for _ in range(3):
        step = commit_step(sure([0.9] * 4), ALL, NONE, state)
    assert step.streak.tolist() == [[3, 3, 3, 3]]
    left = torch.tensor([[True, False, True, True]])
    commit_step(sure([0.9] * 4), left, NONE, state)
    step = commit_step(sure([0.2, 0.95, 0.9, 0.9]), ALL, NONE, state)
    assert step.streak.tolist() == [[1, 1, 5, 5]]
    assert float(step.support[0, 1]) == 0.0


def test_a_callable_gate_sees_the_signals_it_asks_for() -> None:
    seen = {}

    def gate(signals: object) -> torch.Tensor:
        seen.update(signals.measured)  # type: ignore[attr-defined]
        return signals.confidence >= 0.9  # type: ignore[attr-defined, no-any-return]

    commit_step(sure([0.9] * 4), ALL, gate, GateState())
    assert {"margin", "entropy"} <= seen.keys()
    assert "kl" not in seen
    gate.needs = Needs("kl")  # type: ignore[attr-defined]
    commit_step(sure([0.9] * 4), ALL, gate, GateState())
    assert "kl" in seen


def test_a_gate_that_fails_leaves_a_neutral_state() -> None:
    state = GateState()
    commit_step(sure([0.5] * 4), ALL, NONE, state)
    with pytest.raises(ZeroDivisionError):
        commit_step(sure([0.9] * 4), ALL, lambda signals: 1 / 0, state)  # type: ignore[arg-type, return-value]
    step = commit_step(sure([0.9] * 4), ALL, NONE, state)
    assert step.streak.tolist() == [[1] * 4]
    assert float(step.support.sum()) == 0


def test_gradients_stay_outside() -> None:
    logits = sure([0.9] * 4).requires_grad_()
    state = GateState()
    assert not commit_step(logits, ALL, ALL, state).readiness.requires_grad
    assert state.trajectories.memory is not None
    assert state.trajectories.memory.reference is not None
    assert not state.trajectories.memory.reference.requires_grad


def test_inputs_are_left_alone() -> None:
    logits, mask = sure([0.9] * 4), ALL.clone()
    before = logits.clone()
    commit_step(logits, mask, mask, GateState())
    assert torch.equal(logits, before)
    assert mask.all()


@pytest.mark.parametrize(
    ("logits", "mask", "base", "message"),
    [
        (torch.zeros(4, 5), ALL, ALL, r"`logits` must be float \[B, L, V\]"),
        (torch.zeros(1, 4, 5, dtype=torch.int64), ALL, ALL, r"`logits` must be float"),
        (torch.zeros(1, 4, 5), ALL.long(), ALL, r"`mask` must be bool \(1, 4\)"),
        (torch.zeros(1, 3, 5), ALL, ALL, r"`mask` must be bool \(1, 3\)"),
        (torch.zeros(1, 4, 5), ALL, ALL[:, :2], r"`base_gate` must give bool \(1, 4\)"),
        (torch.zeros(1, 4, 5), ALL, lambda signals: signals.confidence, r"`base_gate` must give bool"),
        (torch.zeros(1, 4, 5), ALL, [[True] * 4], r"`base_gate` must be a bool tensor or a function"),
    ],
)
def test_wrong_inputs_are_named(logits: torch.Tensor, mask: torch.Tensor, base: torch.Tensor, message: str) -> None:
    with pytest.raises(TacgError, match=message):
        commit_step(logits, mask, base, GateState())


def test_a_state_belongs_to_one_sequence() -> None:
    state = GateState()
    commit_step(torch.zeros(1, 4, 5), ALL, ALL, state)
    with pytest.raises(TacgError, match="fresh GateState"):
        commit_step(torch.zeros(1, 4, 6), ALL, ALL, state)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"beta": 1.5}, r"`beta` must be float in \[0, 1\], got 1.5"),
        ({"w": -0.1}, "`w` must be float >= 0, got -0.1"),
        ({"m_base": 0}, "`m_base` must be int >= 1, got 0"),
        ({"k_extra": 1.5}, "`k_extra` must be int >= 0, got 1.5"),
        ({"k_extra": True}, "`k_extra` must be int >= 0, got True"),
        ({"support": "ratio"}, "`support` must be gain | log_ratio, got 'ratio'"),
        ({"tau_floor": float("nan")}, "`tau_floor` must be"),
    ],
)
def test_knobs_are_checked(knobs: dict[str, object], message: str) -> None:
    with pytest.raises(TacgError, match=message):
        GateConfig(**knobs)  # type: ignore[arg-type]


def test_it_works_in_and_out_of_inference_mode() -> None:
    """State that is kept between calls may have been created in the other mode."""
    frames = trajectory(1, 3, 1, 2, 20_000, dtype=torch.float32)
    mask, state, plain = torch.ones(1, 2, dtype=torch.bool), GateState(), GateState()
    with torch.inference_mode():
        commit_step(frames[0].clone(), mask, mask, state)
    commit_step(frames[1], mask, mask, state)
    with torch.inference_mode():
        last = commit_step(frames[2].clone(), mask, mask, state)
    for frame in frames:
        step = commit_step(frame, mask, mask, plain)
    assert torch.equal(step.readiness, last.readiness)


def test_refused_logits_leave_no_half_a_step_behind() -> None:
    good = trajectory(2, 2, 1, 2, 50)
    mask, state = torch.ones(1, 2, dtype=torch.bool), GateState()
    commit_step(good[0], mask, mask, state)
    bad = good[1].clone()
    bad[0, 1, 7] = torch.nan
    with pytest.raises(LogitsError):
        commit_step(bad, mask, mask, state)
    after, fresh = (commit_step(good[1], mask, mask, each) for each in (state, GateState()))
    assert torch.equal(after.readiness, fresh.readiness), "it starts over"


def test_a_budget_by_ratio_is_one_at_least() -> None:
    logits = torch.tensor([[[3.0, 0.0], [2.0, 0.0]]])
    mask, nothing = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.bool)
    config = GateConfig(k_ratio=0.0, tau_floor=0.5, m_extra=1)
    assert int(commit_step(logits, mask, nothing, GateState(), config).extra.sum()) == 1
    none = commit_step(logits[:, :0], mask[:, :0], nothing[:, :0], GateState(), config)
    assert none.commit.shape == (1, 0)
