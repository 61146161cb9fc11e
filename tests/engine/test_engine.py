"""The loop: rows join, are decoded and leave, without influencing each other."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import tacg
from tacg.engine.events import Finished, Started, Step
from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request
from tacg.errors import LogitsError, TacgError
from tacg.models.scripted import ScriptedDenoiser
from tacg.models.tiny import random_model
from tacg.policies import Policy, State, get_policy
from tacg.types import Decision, Signals
from tests.worlds import EOS, MASK, ReactiveDenoiser, decode_one, trajectory

KINDS = ["confidence", "klass", "tacg", "tacg+klass", "schedule", "tacg+schedule"]


def sixteen(llm: tacg.LLM) -> list[Request]:
    """Sixteen rows that differ in everything that may differ."""
    rows = []
    for number in range(16):
        policy = get_policy(KINDS[number % 6])
        if "threshold" in policy.knobs():
            policy = policy.replace(threshold=0.5 + 0.02 * number)
        decode = Decode(
            gen_length=9 + 5 * number,
            block_length=(4, 16, 7, 32, 100)[number % 5],
            observe=("block", "sequence")[number % 2],
            early_stop=number % 3 > 0,
            temperature=0.6 if number % 4 == 3 else 0.0,
            seed=number,
        )
        rows.append(Request(tuple(llm.encode("why? " * (1 + number % 7))), policy, decode))
    return rows


@pytest.mark.parametrize("max_rows", [16, 5])
def test_a_mixed_batch_decodes_exactly_as_each_row_alone(llm: tacg.LLM, max_rows: int) -> None:
    requests = sixteen(llm)
    together = Engine(llm.model, max_rows=max_rows).generate(requests)
    alone = [Engine(llm.model).generate([request])[0] for request in requests]
    assert together == alone  # tokens, steps, forwards, reasons, and confidences to the last bit
    assert len({output.steps for output in together}) > 6


def test_waiting_rows_join_when_others_leave() -> None:
    model = ReactiveDenoiser(1)
    lengths = [2, 12, 3, 4, 5]
    requests = [Request((5,), get_policy("schedule"), Decode(gen_length=n, early_stop=False)) for n in lengths]
    engine, together = Engine(model, max_rows=2), []
    for request in requests:
        engine.submit(request)
    while engine.busy:
        model.rows_seen.clear()
        engine.step()
        together.append(len(model.rows_seen))
    assert max(together) == 2
    assert sum(together) == sum(lengths), "one token per step: nobody waits, nobody decodes after the end"
    assert len(together) == 14, "the long row and, beside it, the short ones one after another: 2 + 3 + 4 + 5"


def test_rows_change_block_on_their_own() -> None:
    """A sure row runs ahead of a hesitant one; neither waits at a block edge."""
    sure, slow = torch.zeros(1, 17, 8), torch.zeros(1, 17, 8)
    sure[..., 3], slow[..., 3] = 20.0, 0.5
    model = ScriptedDenoiser([sure, sure, slow])  # script numbers are token ids; 1 is the mask
    rows = [Request((start,), get_policy("confidence"), Decode(gen_length=16, block_length=4)) for start in (0, 2)]
    fast, hesitant = Engine(model).generate(rows)
    assert (fast.steps, hesitant.steps) == (4, 16)
    assert {commit.reason for commit in hesitant.commits} == {"fallback"}


def test_events_tell_the_whole_story() -> None:
    request = Request((4, 6), get_policy("tacg", tau_floor=0.6), Decode(gen_length=18, block_length=6))
    events = list(Engine(ReactiveDenoiser(3, scale=2.0)).stream([request]))
    started, steps, finished = events[0], events[1:-1], events[-1]
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    canvas = [MASK] * 18
    for number, event in enumerate(steps, start=1):
        assert isinstance(event, Step)
        assert event.step == number
        proposed = {each.position: each for each in event.proposals}
        for commit in event.committed:
            assert canvas[commit.position] == MASK, "nothing is written twice"
            assert proposed[commit.position].token == commit.token
            canvas[commit.position] = commit.token
        assert event.canvas == tuple(canvas)
        assert {"support", "readiness", "streak", "reference"} <= proposed[event.proposals[0].position].signals.keys()
    committed = tuple(commit for event in steps if isinstance(event, Step) for commit in event.committed)
    assert finished.output.commits == committed
    assert {"base", "extra", "fallback"} == {commit.reason for commit in committed}


def test_detail_can_be_had_row_by_row(llm: tacg.LLM) -> None:
    requests = sixteen(llm)[:6]
    engine = Engine(llm.model)
    rows = [engine.submit(request) for request in requests]
    steps: dict[int, list[Step]] = {row: [] for row in rows}
    outputs = {}
    while engine.busy:
        for event in engine.step(detail={rows[0]: True, rows[1]: False, rows[4]: False}):
            if isinstance(event, Step):
                steps[event.row].append(event)
            elif isinstance(event, Finished):
                outputs[event.row] = event.output
    assert [outputs[row] for row in rows] == Engine(llm.model).generate(requests)
    assert [row for row in rows if steps[row]] == [rows[0], rows[1], rows[4]]
    assert all(step.proposals for step in steps[rows[0]])
    for row in (rows[1], rows[4]):
        assert not any(step.proposals for step in steps[row])
        assert sum((step.committed for step in steps[row]), ()) == outputs[row].commits


def test_early_stop_ends_at_the_first_closed_eos() -> None:
    """EOS at position 3: a mask before it keeps the row going; masks after it do not."""
    script = torch.zeros(12, 13, 6)
    script[..., 2] = 9.0
    script[:, 4:, EOS] = 30.0  # position 3 of the answer on (the prompt is one token) is EOS, surely
    script[:2, 2, 2] = 0.5  # position 1 hesitates for two steps
    policy = get_policy("confidence", threshold=0.99)
    model = ScriptedDenoiser([script])
    on = decode_one(model, (0,), policy, gen_length=12, block_length=6)
    assert (on.tokens, on.finish_reason) == ((2, 2, 2, EOS), "eos")
    assert on.steps == 2, "one step for what is sure, one for the hole"
    off = decode_one(model, (0,), policy, gen_length=12, block_length=6, early_stop=False)
    assert off.tokens == (2, 2, 2, *[EOS] * 9)
    assert off.tpf == 12 / off.forwards
    assert off.forwards > on.forwards


def test_a_budget_is_kept_evenly() -> None:
    model = ReactiveDenoiser(5)
    output = decode_one(model, (3,), get_policy("schedule"), gen_length=20, block_length=10, steps=8, early_stop=False)
    sizes = [sum(commit.step == step for commit in output.commits) for step in range(1, 9)]
    assert sizes == [3, 3, 2, 2, 3, 3, 2, 2]


def test_sequence_observation_gives_later_blocks_a_past() -> None:
    """In block scope every block starts with streak 1; in sequence scope the second block arrives with a history."""
    script = trajectory(0, 1, 17, 9).float()  # constant logits: streaks only grow
    streaks = {}
    for scope in ("block", "sequence"):
        request = Request(
            (0,), get_policy("tacg", tau_escape=2.0), Decode(gen_length=16, block_length=8, observe=scope)
        )
        events = Engine(ScriptedDenoiser([script])).stream([request])
        second = next(e for e in events if isinstance(e, Step) and e.block == 1)
        streaks[scope] = max(each.signals["streak"] for each in second.proposals)
    assert streaks["block"] == 1
    assert streaks["sequence"] > 3


def test_seeds_belong_to_rows() -> None:
    model = ReactiveDenoiser(2, scale=1.0)
    policy = get_policy("schedule", rank_by="random")
    decode = Decode(gen_length=12, temperature=1.0, early_stop=False)
    requests = [Request((3,), policy, decode.replace(seed=seed)) for seed in (1, 2, 1)]
    first, second, again = Engine(model).generate(requests)
    assert first == again
    assert first.tokens != second.tokens


def test_temperature_samples_the_posterior() -> None:
    """One position, known probabilities: frequencies follow softmax(z / T)."""
    script = torch.tensor([0.0, 0.0, 1.0, 2.0, -1.0]).expand(1, 2, 5)
    model = ScriptedDenoiser([script], eos_ids=(4,))
    requests = [
        Request((0,), get_policy("confidence"), Decode(gen_length=1, temperature=0.5, seed=seed))
        for seed in range(3000)
    ]
    drawn = torch.tensor([output.tokens[0] for output in Engine(model, max_rows=500).generate(requests)])
    shares = torch.bincount(drawn, minlength=5) / len(drawn)
    wanted = (torch.tensor([0.0, -torch.inf, 1.0, 2.0, -1.0]) / 0.5).softmax(0)
    assert torch.allclose(shares, wanted, atol=0.03)


def test_suppressed_ids_and_the_mask_are_never_written() -> None:
    script = torch.zeros(1, 9, 6)
    script[..., MASK], script[..., 3], script[..., 4] = 9.0, 8.0, 7.0
    model = ScriptedDenoiser([script])
    output = decode_one(model, (0,), get_policy("tacg"), gen_length=8)
    assert set(output.tokens) == {3}
    output = decode_one(model, (0,), get_policy("tacg"), gen_length=8, suppress=(3,))
    assert set(output.tokens) == {4}


def test_cancelled_rows_stop_costing_forwards() -> None:
    model = ReactiveDenoiser(4)
    engine = Engine(model, max_rows=2)
    slow = Request((7,), get_policy("schedule"), Decode(gen_length=10, early_stop=False))
    numbers = [engine.submit(slow) for _ in range(3)]
    engine.step()
    engine.step()
    engine.cancel(numbers[0])
    engine.cancel(numbers[2])  # still waiting
    finished = [event for event in engine.step() if isinstance(event, Finished)]
    assert [event.row for event in finished] == [numbers[2], numbers[0]]
    assert all(event.output.finish_reason == "cancelled" for event in finished)
    assert [event.output.forwards for event in finished] == [0, 2]
    assert len(finished[1].output.commits) == 2, "what was there is kept"
    while engine.busy:
        model.rows_seen.clear()
        engine.step()
        assert len(model.rows_seen) == 1


def test_leaving_a_stream_early_cancels_its_rows() -> None:
    model = ReactiveDenoiser(4)
    engine = Engine(model)
    stream = engine.stream([Request((7,), get_policy("schedule"), Decode(gen_length=10))])
    next(stream)
    stream.close()
    engine.step()
    assert not engine.busy


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_a_row_with_bad_logits_fails_alone_and_is_named(temperature: float) -> None:
    """Row 1 turns NaN at answer position 6 in its second block; its neighbours in the lane decode as if alone."""
    good, bad = (trajectory(seed, 9, 13, 7).float() for seed in (0, 1))
    bad[6:, 7, 2] = torch.nan
    model = ScriptedDenoiser([good, good, bad])
    decode = Decode(gen_length=12, block_length=4, early_stop=False, temperature=temperature)
    requests = [Request((start,), get_policy("tacg", threshold=1.0, tau_floor=1.0), decode) for start in (0, 2)]
    done = [event for event in Engine(model).stream(requests, detail=False) if isinstance(event, Finished)]
    assert [(event.row, event.output.finish_reason == "error") for event in done] == [(1, True), (0, False)]
    assert "row 1, position 6" in done[0].output.error
    assert len(done[0].output.commits) == 6, "what was committed before is kept"
    assert done[1].output == Engine(model).generate(requests[:1])[0]
    with pytest.raises(LogitsError, match="row 1, position 6"):
        Engine(model).generate(requests)


def test_a_stream_has_the_engine_to_itself() -> None:
    engine = Engine(ReactiveDenoiser(1))
    request = Request((3,), get_policy("schedule"), Decode(gen_length=6))
    first = engine.stream([request])
    next(first)
    with pytest.raises(TacgError, match="busy with other rows"):
        next(engine.stream([request]))
    first.close()
    assert len(engine.generate([request])) == 1
    with pytest.raises(TacgError, match="prompt is empty"):
        engine.generate([request, Request((), request.policy, request.decode)])
    assert not engine.busy, "a refused batch leaves nothing behind"


def test_state_per_row_starts_anew_with_each_row() -> None:
    """A slot is reused, but the policy's state of the previous row is not."""

    @dataclass(frozen=True)
    class Patient(Policy):
        """Waits for its third step, then commits all."""

        def start(self, rows: int, width: int, device: torch.device) -> State:
            return {"deep": {"taken": torch.zeros(rows, dtype=torch.int64)}}

        def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
            taken = state["deep"]["taken"] + 1
            ready = signals.eligible & (taken >= 3)[:, None]
            return Decision(ready, rank=signals.confidence), {"deep": {"taken": taken}}

    model = ReactiveDenoiser(0)
    requests = [Request((3 + n,), Patient(), Decode(gen_length=4 + n, early_stop=False)) for n in (0, 0, 0, 0)]
    assert [output.steps for output in Engine(model, max_rows=2).generate(requests)] == [3, 3, 3, 3]


def test_ranks_of_minus_infinity_still_make_progress() -> None:
    @dataclass(frozen=True)
    class Shy(Policy):
        """Ranks almost nothing."""

        def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
            nothing = torch.zeros_like(signals.eligible)
            return Decision(nothing, rank=torch.full_like(signals.confidence, -torch.inf)), state

    output = decode_one(ReactiveDenoiser(0), (3,), Shy(), gen_length=6, early_stop=False)
    assert [commit.position for commit in output.commits] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gen_length": 0}, "`gen_length` must be int >= 1, got 0"),
        ({"gen_length": 20, "block_length": 5, "steps": 3}, "number of blocks, 4, got 3"),
        ({"gen_length": 600}, r"must fit 512 positions .* 1 \+ 600 = 601"),
        ({"observe": "all"}, "`observe` must be block | sequence, got 'all'"),
        ({"suppress": (99,)}, r"`suppress` must hold ids in \[0, 23\), got 99"),
        ({"suppress": "x"}, "`suppress` must be token ids, got 'x'"),
        ({"temperature": float("inf")}, "`temperature` must be float >= 0, got inf"),
        ({"seed": 2**70}, "`seed` must be int >= 0"),
        ({"temperature": -1.0}, "`temperature` must be float >= 0, got -1.0"),
    ],
)
def test_impossible_requests_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(TacgError, match=message):
        decode_one(ReactiveDenoiser(), (3,), get_policy("tacg"), **settings)


def test_prompts_are_checked() -> None:
    with pytest.raises(TacgError, match="prompt is empty"):
        decode_one(ReactiveDenoiser(), (), get_policy("tacg"))
    with pytest.raises(TacgError, match="`prompt` must hold ids"):
        decode_one(ReactiveDenoiser(), (-1,), get_policy("tacg"))
    with pytest.raises(TacgError, match="`max_rows` must be >= 1"):
        Engine(ReactiveDenoiser(), max_rows=0)


def test_half_precision_refuses_what_has_nothing_to_say() -> None:
    """float16 cannot hold the number that replaces -inf; suppressed tokens must not become proposals."""
    script = torch.zeros(1, 3, 6, dtype=torch.float16)
    for hidden, logits in (
        ((0, 2, 3, 4, 5), script),
        ((), script.index_fill(2, torch.tensor([0, 2, 3, 4, 5]), -torch.inf)),
    ):
        request = Request((0,), get_policy("tacg"), Decode(gen_length=2, suppress=hidden))
        with pytest.raises(LogitsError):
            Engine(ScriptedDenoiser([logits])).generate([request])


def test_a_policy_may_keep_what_it_is_given() -> None:
    seen = []

    @dataclass(frozen=True)
    class Keeper(Policy):
        name = "keeper"

        def start(self, rows: int, width: int, device: torch.device) -> State:
            return {}

        def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
            seen.append(signals.step)
            return Decision(torch.zeros_like(signals.observed), signals.confidence), state

    decode_one(ReactiveDenoiser(), (5,), Keeper(), gen_length=4, block_length=2, early_stop=False)
    assert [each.tolist() for each in seen] == [[0], [1], [0], [1]]


def test_bytes_are_no_prompt(llm: tacg.LLM) -> None:
    with pytest.raises(TacgError, match="must be a text"):
        llm.generate(b"hi", "tacg")


def test_a_row_without_branches_is_forwarded_as_it_is() -> None:
    """Lookum proposes none where something is sure: what it would have tried is not on the canvas then."""
    alone = 0
    for seed in range(8):
        model = ReactiveDenoiser(seed, scale=1.0)
        engine, before = Engine(model), (5, 6, *[MASK] * 12)
        engine.submit(Request((5, 6), get_policy("lookum", bypass=0.7, k=6), Decode(gen_length=12, early_stop=False)))
        while engine.busy:
            seen = len(model.rows_seen)
            for event in engine.step():
                if isinstance(event, Step):
                    if len(model.rows_seen) == seen + 1:
                        assert model.rows_seen[-1] == before
                        alone += 1
                    before = (5, 6, *event.canvas)
    assert alone > 8, "more than the first steps"


def test_what_a_model_keeps_is_usable_in_any_mode() -> None:
    """A caller's inference mode is left: tables made in it could not be used in training."""
    model = random_model("llada")
    engine, decode = Engine(model), Decode(gen_length=8, block_length=4, cache="prefix", early_stop=False)
    for length in (8, 40):  # the second row makes the cache grow between two forwards
        engine.submit(Request((7, 8), get_policy("tacg"), decode.replace(gen_length=length)))
        with torch.inference_mode():
            engine.step()
        (batch,) = engine._batches.values()
        assert batch.store.layers
        assert not any(layer.is_inference() for layer in batch.store.layers)
    while engine.busy:
        engine.step()
