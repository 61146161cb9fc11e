"""What positions may become, compared with enumeration, and decodes that never violate it."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacg
from tacg.constraint.automaton import Automaton, lift
from tacg.constraint.reach import Reach
from tacg.constraint.regex import byte_automaton
from tacg.engine.events import Finished, Step
from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request
from tacg.policies import get_policy, policy_names
from tests.revising import Reviser
from tests.worlds import EOS, MASK, ReactiveDenoiser

if TYPE_CHECKING:
    from collections.abc import Iterator

# Id 0 is EOS, 1 the mask, 2 special, 3 a text that nobody may write; the others spell these.
SPELLED: list[bytes | None] = [None, None, None, b"b", b"a", b"ab", b"c", b"bca", b"aa"]
UNWRITABLE = frozenset({MASK, 3})
TEXT = {number: (each or b"").decode() for number, each in enumerate(SPELLED)}
letters = st.sampled_from(["a", "b", "c", "ab", "[ab]", "."])
patterns = st.recursive(
    letters,
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})")
        | st.tuples(inner, st.sampled_from(["*", "?", "+", "{2}"])).map(lambda two: f"(?:{two[0]}){two[1]}")
    ),
    max_leaves=5,
)


def automaton(pattern: str, *, holes: bool = False) -> Automaton:
    return lift(pattern, *byte_automaton(pattern), SPELLED, (EOS,), UNWRITABLE, holes=holes)


def good(pattern: str, answer: tuple[int, ...], *, holes: bool) -> bool:
    """Whether a full canvas satisfies the pattern."""
    if not holes:
        end = answer.index(EOS) if EOS in answer else len(answer)
        if {*answer[end:]} - {EOS} or 2 in answer:
            return False
        answer = answer[:end]
    return re.fullmatch(pattern, "".join(TEXT[each] for each in answer)) is not None


def completions(pattern: str, canvas: list[int], *, holes: bool) -> Iterator[tuple[int, ...]]:
    options = [(4, 5, 6, 7, 8, EOS) if each == MASK else (each,) for each in canvas]
    return (answer for answer in itertools.product(*options) if good(pattern, answer, holes=holes))


def reach_of(made: Automaton, canvas: list[int]) -> Reach:
    tokens = np.array(canvas)
    return Reach.of(made, tokens, tokens == MASK, made.start)


canvases = st.lists(st.sampled_from([MASK, MASK, MASK, 3, 4, 5, 6, 7, 2, EOS]), min_size=1, max_size=4)


WRITABLE = (4, 5, 6, 7, 8, EOS)


def agrees(reach: Reach, pattern: str, canvas: list[int], *, holes: bool) -> None:
    """What positions may become, against all completions."""
    answers = list(completions(pattern, canvas, holes=holes))
    assert reach.possible == bool(answers)
    masks = [place for place, given_ in enumerate(canvas) if given_ == MASK]
    allowed = reach.allowed(np.array(masks, dtype=np.int64))[:, reach.automaton.kind]
    options = [{answer[place] for answer in answers} for place in masks]
    assert [{token for token in np.flatnonzero(each) if token in WRITABLE} for each in allowed] == options
    only = {place: some.copy().pop() for place, some in zip(masks, options, strict=True) if len(some) == 1}
    assert dict(zip(*(each.tolist() for each in reach.forced()), strict=True)) == only


@settings(max_examples=250, deadline=None)
@given(patterns, canvases, st.booleans(), st.data())
def test_a_token_is_allowed_exactly_if_some_completion_has_it(
    pattern: str, canvas: list[int], holes: bool, data: st.DataObject
) -> None:
    """Also after writes and re-masks, when only what changed is computed again."""
    reach = reach_of(automaton(pattern, holes=holes), canvas)
    agrees(reach, pattern, canvas, holes=holes)
    for _ in range(2):
        written = np.array(
            data.draw(st.lists(st.integers(0, len(canvas) - 1), unique=True, max_size=2)), dtype=np.int64
        )
        tokens = np.array([data.draw(st.sampled_from(WRITABLE)) for _ in written], dtype=np.int64)
        free = np.array(data.draw(st.lists(st.booleans(), min_size=len(canvas), max_size=len(canvas))))
        after = reach.where(written, tokens, free).completed(reach)
        canvas = [MASK if again else token for token, again in zip(canvas, free, strict=True)]
        for place, token in zip(written, tokens, strict=True):
            canvas[place] = int(token)
        agrees(after, pattern, canvas, holes=holes)
        same = ~after.changed(reach) & after.free & reach.free
        places = np.flatnonzero(same)
        assert (after.allowed(places) == reach.allowed(places)).all()
        reach = after


@settings(max_examples=250, deadline=None)
@given(patterns, st.integers(1, 5), st.data())
def test_what_is_agreed_on_is_taken_in_order_of_readiness(pattern: str, length: int, data: st.DataObject) -> None:
    made, canvas = automaton(pattern), [MASK] * length
    if not list(completions(pattern, canvas, holes=False)):
        return
    order = data.draw(st.lists(st.integers(0, length - 1), unique=True))
    proposed = data.draw(st.lists(st.sampled_from(WRITABLE), min_size=len(order), max_size=len(order)))
    kept = list(canvas)
    for place, token in zip(order, proposed, strict=True):  # one by one, by enumeration
        attempt = [*kept[:place], token, *kept[place + 1 :]]
        if any(True for _ in completions(pattern, attempt, holes=False)):
            kept = attempt
    reach = reach_of(made, canvas)
    found, keep = reach.agreed(np.array(order, dtype=np.int64), np.array(proposed, dtype=np.int64))
    for place, token, good_ in zip(order, proposed, keep, strict=True):
        canvas[place] = token if good_ else MASK
    assert canvas == kept
    agrees(found.completed(reach), pattern, canvas, holes=False)


# -- through the engine ------------------------------------------------------------------------------------------------

NAMES = [*policy_names(), *(f"tacg+{each}" for each in policy_names() if not each.startswith("tacg"))]
VOCABULARY = [None, None, *(bytes([byte]) for byte in b'abc019-.{}": ,'), b"ab", b"10", b'{"', b'": ', None, b"x"]


def words(pattern: str, size: int = 23) -> Automaton:
    spelled = [*VOCABULARY, *[None] * (size - len(VOCABULARY))]
    return lift(pattern, *byte_automaton(pattern), spelled, (EOS,), frozenset({MASK}), holes=False)


def text(tokens: tuple[int, ...]) -> str:
    return b"".join(VOCABULARY[each] or b"" for each in tokens if each != EOS).decode()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_every_policy_answers_what_matches(name: str, data: st.DataObject) -> None:
    """Random models, lengths and constraints in one batch: all answers match, and each is the same as alone."""
    options = [
        "[abc]{2,5}",
        "a*",
        '\\{"a": (?:0|1[019]*)\\}',
        "(?:ab|c)+",
        "x|ab|1.0",
        "[019]+(?:-[019]+)*",
        "(?:a|b)*c",
    ]
    model = ReactiveDenoiser(data.draw(st.integers(0, 50)), scale=data.draw(st.sampled_from([0.5, 3.0])))
    early, temperature = data.draw(st.booleans()), data.draw(st.sampled_from([0.0, 0.8]))
    asked = []
    for seed, pattern in enumerate(data.draw(st.lists(st.sampled_from(options), min_size=1, max_size=3))):
        length = data.draw(st.integers(9, 14))
        decode = Decode(
            gen_length=length, block_length=data.draw(st.integers(2, 14)), early_stop=early, seed=seed,
            temperature=temperature, steps=data.draw(st.none() | st.just(length // 2 + 4)),
        )  # fmt: skip
        asked.append(Request((5, 6), get_policy(name), decode, constraint=words(pattern)))
    verifier = ReactiveDenoiser(99)
    outputs = Engine(model, verifier=verifier).generate(asked)
    for request, output in zip(asked, outputs, strict=True):
        assert request.constraint is not None
        assert re.fullmatch(request.constraint.pattern, text(output.tokens)), output
        assert output.finish_reason == "eos"
        assert 0 <= output.forced <= len(output.tokens)
        assert 0 <= output.cut <= 1
        assert output.steps <= 2 * request.decode.gen_length
        assert MASK not in output.tokens
        *_, last = Engine(model, verifier=verifier).stream([request])
        assert isinstance(last, Finished)
        assert last.output == output, "alone, and watched"


@pytest.mark.parametrize("edits", [False, True])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 500), length=st.integers(6, 12), remasks=st.integers(1, 2))
def test_what_is_masked_again_stays_within_the_constraint(seed: int, length: int, remasks: int, edits: bool) -> None:
    """After every step some completion exists; a position that can only become what it was is not masked again."""
    made, remasked = words("(?:ab|c){2,}0(?:1|-)"), 0
    policy = Reviser(pace=3, remasks=remasks, edits=edits)
    request = Request((5, 6), policy, Decode(gen_length=length, block_length=length), constraint=made)
    for event in Engine(ReactiveDenoiser(seed)).stream([request]):
        if isinstance(event, Step):
            again = {commit.position for commit in event.committed if commit.reason == "remask"}
            assert all(event.canvas[place] == MASK for place in again), "one event for each position"
            assert reach_of(made, list(event.canvas)).possible
            assert not len(reach_of(made, list(event.canvas)).forced()[0]), "what is left has a choice"
            remasked += len(again)
        elif isinstance(event, Finished):
            assert re.fullmatch(made.pattern, text(event.output.tokens))
            assert MASK not in event.output.tokens
    hypothesis.event(f"re-masked: {remasked > 0}")


def test_some_of_it_is_masked_again() -> None:
    """Otherwise the test above would show nothing."""
    request = Request((5, 6), Reviser(pace=3), Decode(gen_length=12), constraint=words("[abc]{4,}"))
    (output,) = Engine(ReactiveDenoiser(1)).generate([request])
    assert "remask" in {commit.reason for commit in output.commits}


@pytest.mark.parametrize("name", ["lookum", "lopa"])
def test_branches_may_be_what_the_constraint_forces(name: str) -> None:
    """A chosen branch also writes what it forces; those tokens count as forced, not as the branch's."""
    request = Request((5, 6), get_policy(name), Decode(gen_length=8), constraint=words("(?:aba|c1c|x0x){2}"))
    (output,) = Engine(ReactiveDenoiser(1, scale=0.5)).generate([request])
    assert re.fullmatch("(?:aba|c1c|x0x){2}", text(output.tokens))
    reasons = [commit.reason for commit in output.commits]
    assert "branch" in reasons
    assert output.forced >= reasons.count("forced") > 0


def test_structure_spares_forwards_and_is_counted() -> None:
    """An answer without any choice needs no forward; `ab` has two spellings, and the model chooses one."""
    model = ReactiveDenoiser(3)
    policy, decode = get_policy("confidence"), Decode(gen_length=6)
    (one,) = Engine(model).generate([Request((5,), policy, decode, constraint=words("c0c"))])
    assert (text(one.tokens), one.forwards, one.steps, one.forced, one.tpf) == ("c0c", 0, 0, 4, 0.0)
    (two,) = Engine(model).generate([Request((5,), policy, decode, constraint=words("c0(?:a|b)"))])
    assert (text(two.tokens)[:2], two.forwards, two.forced) == ("c0", 1, 3)
    assert 0 < two.cut <= 1


def test_rows_without_constraints_are_not_touched() -> None:
    """Rows without a constraint are equal to the last bit next to rows with one."""
    model, policy, decode = ReactiveDenoiser(4), get_policy("tacg"), Decode(gen_length=12)
    plain = Request((5, 6, 7), policy, decode)
    beside = Request((5, 6, 7), policy, decode, constraint=words("[abc]+"))
    assert Engine(model).generate([plain, beside])[0] == Engine(model).generate([plain])[0]


@pytest.mark.parametrize(("pattern", "told"), [("a{7}", "`gen_length` must be at least 7"), ("z", "cannot be met")])
def test_what_cannot_be_is_refused_before_decoding(pattern: str, told: str) -> None:
    model = ReactiveDenoiser(5)
    engine = Engine(model)
    fine = Request((5,), get_policy("tacg"), Decode(gen_length=6))
    with pytest.raises(tacg.TacgError, match=told):
        engine.generate([fine, Request((5,), get_policy("tacg"), Decode(gen_length=6), constraint=words(pattern))])
    assert model.rows_seen == []
    assert not engine.busy


def test_a_canvas_that_contradicts_is_refused() -> None:
    made = lift("ab*", *byte_automaton("ab*"), [*VOCABULARY, *[None] * 2], (EOS,), frozenset({MASK}), holes=True)
    canvas = (MASK, 4, MASK)  # a "c" in the middle
    request = Request((5,), get_policy("tacg"), Decode(gen_length=3, early_stop=False), canvas, made, made.start)
    with pytest.raises(tacg.TacgError, match="No filling of the 3 positions"):
        Engine(ReactiveDenoiser(5)).generate([request])
