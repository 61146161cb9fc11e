"""Random constraints, canvases and logits: is every answer valid, and is nothing possible refused?

regex   random expressions over small alphabets, also on canvases with given tokens. All completions are enumerated and
        checked by Python's `re`: what is possible must be decoded, what is not must be refused before a forward
schema  random JSON schemas, with lengths from too short to ample. Answers are checked by `json` and by `jsonschema`
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tacg.constraint.automaton import lift
from tacg.constraint.pattern import pattern_of
from tacg.constraint.reach import Reach
from tacg.constraint.regex import byte_automaton
from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request
from tacg.errors import TacgError
from tacg.models.base import ModelSpec
from tacg.policies import get_policy
from tacg.records.surroundings import surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from tacg.constraint import Automaton
    from tacg.models.base import Span
    from tacg.policies import Policy
    from tacg.records.rows import ResultRow

EOS, MASK = 0, 1
POLICIES = (
    "tacg",
    "confidence",
    "klass",
    "schedule",
    "entropy",
    "joint",
    "saber",
    "tacg+klass",
    "wino",
    "lookum",
    "lopa",
)
LETTERS = ("a", "b", "c", "ab", "bca", "aa")
MARKS = ('{"', '": ', '", "', "[]", '"}', ", ", "true", "null", "false", "10", "-1", "ab", "é", 'a"')
CHARACTERS = tuple('abx0123456789-+.eE{}[]": ,\\/ntrufalsé')
TOGETHER = 16  # rows of a batch


class RandomModel:
    """Random logits that do not depend on the canvas."""

    def __init__(self, words: Sequence[str], seed: int) -> None:
        self.words: list[bytes | None] = [None, None, *(word.encode() for word in words)]
        self.spec = ModelSpec("random", "random", len(self.words), MASK, (EOS,), (MASK,), 1024)
        self.device, self.calls = torch.device("cpu"), 0
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """float [P, V]: confident at some positions, not at others."""
        self.calls += 1
        heat = 8 * torch.rand(len(select), 1, generator=self.generator)
        return heat * torch.randn(len(select), len(self.words), generator=self.generator)

    def automaton(self, pattern: str, *, holes: bool) -> Automaton:
        """Ids of the texts that these tokens spell."""
        return lift(pattern, *byte_automaton(pattern), self.words, (EOS,), frozenset({MASK}), holes=holes)

    def text(self, tokens: Sequence[int]) -> str:
        """The text that they spell."""
        return b"".join(self.words[token] or b"" for token in tokens).decode()


@dataclass(frozen=True)
class Attempt:
    """A request, whether it can be met, and a check of the answer."""

    request: Request
    possible: bool
    pattern: str = ""
    schema: Any = None


def measure(kind: str, count: int, seed: int = 0) -> ResultRow:
    """One row for `count` trials of a kind."""
    model = RandomModel(LETTERS if kind == "regex" else [*dict.fromkeys((*CHARACTERS, *MARKS))], seed)
    dice, counts = random.Random(f"{kind}/{seed}"), Counter[str]()
    draw = _regex_trial if kind == "regex" else _schema_trial
    for start in range(0, count, TOGETHER):
        policy = get_policy(POLICIES[start // TOGETHER % len(POLICIES)])
        trials = [draw(model, dice, policy, counts) for _ in range(min(TOGETHER, count - start))]
        counts.update(_decided(model, trials))
    faults = ("refused though possible", "decoded though impossible", "dead ends", "invalid", "wrong boards")
    return {
        "bench": "constraint", "part": "trials", "subject": kind, "trials": count, "seed": seed,
        "answered": counts["answered"], "refused": counts["refused"], "canvases": counts["canvases"],
        "enumerated": counts["enumerated"], **{name.replace(" ", "_"): counts[name] for name in faults},
        "held_share": 1 - sum(counts[name] for name in faults) / count, "judge": "re" if kind == "regex" else _judge(),
        **surroundings(),
    }  # fmt: skip


def _decided(model: RandomModel, trials: Sequence[Attempt]) -> Iterator[str]:
    """What became of each trial."""
    engine, going = Engine(model, TOGETHER), dict[int, Attempt]()
    for trial in trials:
        try:
            going[engine.submit(trial.request)] = trial
            if trial.possible is False:
                yield "decoded though impossible"
        except TacgError:
            yield "refused" if not trial.possible else "refused though possible"
    outputs: dict[int, Any] = {}
    while engine.busy:
        for event in engine.step(detail=False):
            if hasattr(event, "output"):
                outputs[event.row] = event.output
    for number, trial in going.items():
        output = outputs.get(number)
        if output is None or output.finish_reason != "eos" or MASK in output.tokens:
            yield "dead ends"
        else:
            yield "answered" if _holds(trial, model.text(output.tokens)) else "invalid"


def _holds(trial: Attempt, text: str) -> bool:
    if trial.schema is None:
        return re.fullmatch(trial.pattern, text) is not None
    try:
        value = json.loads(text)
    except ValueError:
        return False
    if _judge() == "json":
        return True
    import jsonschema

    return bool(jsonschema.Draft202012Validator(trial.schema).is_valid(value))


def _judge() -> str:
    try:
        import jsonschema  # noqa: F401
    except ImportError:
        return "json"
    return "jsonschema"


# -- regular expressions -----------------------------------------------------------------------------------------------


def _regex_trial(model: RandomModel, dice: random.Random, policy: Policy, counts: Counter[str]) -> Attempt:
    """An expression and, in every other trial, a canvas of up to four positions; allowed tokens are compared."""
    pattern, holes = _expression(dice, 3), dice.random() < 0.5
    length = dice.randint(1, 4)
    canvas = [MASK] * length
    if holes:
        canvas = [dice.choice([MASK, MASK, *range(2, len(model.words))]) for _ in canvas]
        canvas[dice.randrange(length)] = MASK
        counts["canvases"] += 1
    made = model.automaton(pattern, holes=holes)
    options = [(EOS, *range(2, len(model.words))) if each == MASK else (each,) for each in canvas]
    answers = [each for each in itertools.product(*options) if _good(model, pattern, each, holes=holes)]
    counts["enumerated"] += 1
    tokens = np.array(canvas)
    allowed = Reach.of(made, tokens, tokens == MASK, made.start).allowed(np.arange(length))[:, made.kind]
    may = [{answer[place] for answer in answers} for place in range(length)]
    if any({*np.flatnonzero(allowed[place]).tolist()} - {MASK} != may[place]
           for place in range(length) if canvas[place] == MASK):  # fmt: skip
        counts["wrong boards"] += 1
    decode = _decode(dice, length, early_stop=not holes)
    given = tuple(canvas) if holes else ()
    return Attempt(Request((2,), policy, decode, given, made, made.start), bool(answers), pattern)


def _good(model: RandomModel, pattern: str, answer: Sequence[int], *, holes: bool) -> bool:
    """Whether a full canvas matches. In a hole, EOS leaves a position empty; otherwise nothing follows it."""
    if not holes and EOS in answer:
        end = answer.index(EOS)
        if any(token != EOS for token in answer[end:]):
            return False
    return re.fullmatch(pattern, model.text(answer)) is not None


def _expression(dice: random.Random, depth: int) -> str:
    roll = dice.random()
    if depth == 0 or roll < 0.2:
        return dice.choice(["a", "b", "c", "ab", "[ab]", "[^a]", ".", "bc?"])
    one = _expression(dice, depth - 1)
    if roll < 0.55:
        return f"{one}{_expression(dice, depth - 1)}"
    if roll < 0.75:
        return f"(?:{one}|{_expression(dice, depth - 1)})"
    return f"(?:{one}){dice.choice(['*', '?', '+', '{2}', '{1,3}', '*?'])}"


# -- schemas -----------------------------------------------------------------------------------------------------------


def _schema_trial(model: RandomModel, dice: random.Random, policy: Policy, counts: Counter[str]) -> Attempt:
    """A schema, and room for its shortest answer, for more, or for one token less."""
    schema = _schema(dice, 2)
    pattern = pattern_of({"schema": schema})
    assert pattern is not None
    made = model.automaton(pattern, holes=False)
    shortest = made.shortest()
    assert shortest is not None
    room = dice.choice([-1, 0, 0, 1, 5, 12])
    length = max(1, shortest + room)
    return Attempt(
        Request((2,), policy, _decode(dice, length), (), made, made.start), length >= shortest, pattern, schema
    )


def _schema(dice: random.Random, depth: int) -> dict[str, Any]:
    roll, low = dice.random(), dice.randint(-30, 30)
    if depth and roll < 0.35:
        names = dice.sample(["a", "b", "xa", "é", "0"], dice.randint(0, 3))
        properties = {name: _schema(dice, depth - 1) for name in names}
        required = [name for name in names if dice.random() < 0.6]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if depth and roll < 0.5:
        least = dice.randint(0, 2)
        return {"type": "array", "items": _schema(dice, depth - 1), "minItems": least, "maxItems": least + 1}
    if depth and roll < 0.6:
        return {"anyOf": [_schema(dice, depth - 1), _schema(dice, depth - 1)]}
    plain: list[dict[str, Any]] = [
        {"type": "string"}, {"type": "string", "minLength": 1, "maxLength": dice.randint(1, 4)}, {"type": "boolean"},
        {"type": "null"}, {"type": "number"}, {"type": "integer"}, {"type": ["integer", "null"]},
        {"type": "integer", "minimum": low, "maximum": low + dice.randint(0, 200)}, {"const": {"a": [low, None]}},
        {"type": "integer", "exclusiveMinimum": low}, {"enum": dice.sample([0, 1, -1, "a", "b\"", None, True], 3)},
    ]  # fmt: skip
    return dice.choice(plain)


def _decode(dice: random.Random, length: int, *, early_stop: bool = True) -> Decode:
    return Decode(
        gen_length=length, block_length=dice.randint(max(1, length // 3), length), seed=dice.randrange(1000),
        temperature=dice.choice([0.0, 0.0, 1.0]), early_stop=early_stop,
    )  # fmt: skip
