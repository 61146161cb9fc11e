"""What a constraint costs per step: a schema of 30 fields, a vocabulary of LLaDA's size.

boards   finding the tokens that each position may still become (in the table: allowed tokens), and which proposals can
         be written together
masking  suppressing impossible tokens in the logits of the active block
step     a whole step with both, and only the model's output layer: the least that any LLaDA computes

Times are processor time on one thread.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from tacg.bench.constraint.trials import RandomModel
from tacg.constraint.pattern import pattern_of
from tacg.engine.loop import Engine
from tacg.engine.request import Decode, Request
from tacg.policies import get_policy
from tacg.records.surroundings import surroundings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tacg.engine.constrained import Constrained
    from tacg.models.base import Span
    from tacg.records.rows import ResultRow

VOCABULARY, WIDTH, FIELDS, LENGTH, BLOCK = 126_464, 4096, 30, 512, 64
KINDS: tuple[dict[str, Any], ...] = (
    {"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"type": "number"}, {"enum": ["red", "green"]},
    {"type": "array", "items": {"type": "integer"}},
)  # fmt: skip
WORDS = ("size", "name", "colour", "weight", "owner", "count", "price", "label", "state", "level")


def vocabulary(size: int) -> list[str]:
    """A vocabulary like a tokenizer's: single characters, numbers, JSON punctuation, and made-up words."""
    dice = random.Random(0)
    found = dict.fromkeys([*map(chr, range(32, 127)), '": "', '", "', '": ', '{"', '"}', ', "', '":', '",', ' "'])
    found |= dict.fromkeys(str(number) for number in range(1000))
    while len(found) < size:
        word = "".join(dice.choices("etaoinshrdlucmfwypvbgkjqxz", range(26, 0, -1), k=dice.randint(2, 10)))
        found[dice.choice(["", " "]) + word] = None
    return list(found)[:size]


class SlowModel(RandomModel):
    """Random logits, after the matrix products of an output layer, which are timed."""

    def __init__(self, words: Sequence[str], width: int) -> None:
        super().__init__(words, seed=0)
        self.part = torch.randn(width, -(-len(words) // 8))  # an eighth of the weights, used eight times
        self.seconds = 0.0
        self.made = torch.empty(0)

    def __call__(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """The same call as any model's."""
        state = torch.randn(len(select), len(self.part))
        began = time.process_time()
        for _ in range(8):
            state @ self.part
        self.seconds += time.process_time() - began
        if len(self.made) < len(select):
            self.made = super().__call__(tokens, spans, select)
        return self.made[: len(select)].clone()


def schema_of(fields: int) -> dict[str, Any]:
    """Fields of many kinds."""
    properties = {f"{WORDS[number % len(WORDS)]}_{number}": KINDS[number % len(KINDS)] for number in range(fields)}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def measure(*, quick: bool = False, steps: int = 12) -> ResultRow:
    """One row: the time of a step, and the constraint's share of it."""
    size, width, fields = (3001, 32, 5) if quick else (VOCABULARY, WIDTH, FIELDS)
    model, spent = SlowModel(vocabulary(size - 2), width), defaultdict[str, float](float)
    pattern = pattern_of({"schema": schema_of(fields)})
    assert pattern is not None
    began = time.process_time()
    made = model.automaton(pattern, holes=False)
    compiled = time.process_time() - began
    request = Request((2,), get_policy("tacg"), Decode(gen_length=LENGTH, block_length=BLOCK), (), made, made.start)
    engine = Engine(model)
    engine.submit(request)
    engine.step(detail=False)  # warm
    held = next(iter(engine._batches.values())).constrained
    assert held is not None
    for name, method in (("masking", "apply"), ("boards", "settle")):
        _watch(held, method, name, spent)
    model.seconds, began = 0.0, time.process_time()
    for _ in range(steps):
        engine.step(detail=False)
    whole = time.process_time() - began
    ms = {name: 1e3 * seconds / steps for name, seconds in {**spent, "output": model.seconds, "step": whole}.items()}
    return {
        "bench": "constraint", "part": "cost", "steps": steps, "vocabulary": size, "fields": fields,
        "positions": LENGTH, "block": BLOCK, "states": len(made.table), "classes": made.table.shape[1],
        "compile_ms": 1e3 * compiled,
        **{f"{name}_ms": value for name, value in ms.items()}, "baseline": f"step, output layer of width {width}",
        "share_of_step": (ms["boards"] + ms["masking"]) / ms["step"],
        "share_outside_model": (ms["boards"] + ms["masking"]) / (ms["step"] - ms["output"]), **surroundings(),
    }  # fmt: skip


def _watch(held: Constrained, method: str, name: str, spent: dict[str, float]) -> None:
    original = getattr(held, method)

    def watched(*words: Any) -> Any:
        began = time.process_time()
        result = original(*words)
        spent[name] += time.process_time() - began
        return result

    setattr(held, method, watched)
