"""Regular expressions, choices and schemas, against Python's `re`, `json` and a validator."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacg
from tacg.constraint import pattern_of
from tacg.constraint.regex import byte_automaton

PATTERNS = [
    "a*|c", "a|ab", "(?:ab|a)(?:c|bc)?", "[^a]", "[é-ü]+", ".", r"\d{2,3}", r"\w+\s?", "(?:a?b?)*c", "é|ü|日本",
    r"[\x00-\U0010ffff]", "a{0}", "", "(a|b)*?b", r"\.\*\[", "[^\\d]{1,2}", "x{2,}",
]  # fmt: skip
TEXTS = [
    "", "a", "b", "c", "ab", "abc", "abbc", "é", "ü", "日本", "日", "12", "123", "1234", "٣٣", "\n", "a b", "xx", "xxx",
    ".*[", "\U0001f600",
]  # fmt: skip


def reads(automaton: tuple[np.ndarray, np.ndarray, int], text: str) -> bool:
    table, accept, state = automaton
    for byte in text.encode():
        state = int(table[state, byte])
    return bool(accept[state])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_automaton_knows_what_python_matches(pattern: str) -> None:
    made = byte_automaton(pattern)
    assert [reads(made, text) for text in TEXTS] == [bool(re.fullmatch(pattern, text)) for text in TEXTS]


def test_automata_are_smallest_and_do_not_grow_with_what_searching_would_need() -> None:
    assert len(byte_automaton("(?:a|b)*|(?:b|a)*")[0]) == 2
    assert len(byte_automaton('"[^"]{0,40}"')[0]) < 400


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"regex": "("}, "cannot be read"),
        ({"regex": r"(a)\1"}, "uses groupref"),
        ({"regex": "a(?=b)"}, "uses assert"),
        ({"regex": "a^b"}, "uses at"),
        ({"regex": "(?i)a"}, "uses flags"),
        ({"regex": "(?:a|b)*a(?:a|b){20}"}, "more than 4096 states"),
        ({"regex": "(?:(?:a{999}){999}){999}"}, "more than 4096 states"),
        ({"regex": 3}, "`regex` must be a text"),
        ({"choices": []}, "`choices` must be a non-empty list"),
        ({"choices": ["a", ""]}, "non-empty"),
        ({"choices": ["a"], "regex": "a"}, "one of schema, regex, choices"),
        ({"schema": "x"}, "`schema` must be a JSON schema"),
        ({"schema": {"type": "string", "pattern": "a"}}, "uses pattern"),
        ({"schema": {"type": "number", "minimum": 1}}, "uses minimum"),
        ({"schema": {"oneOf": [{"type": "null"}]}}, "uses oneOf"),
        ({"schema": {"$ref": "#"}}, "recursive"),
        ({"schema": {"$ref": "#/$defs/x"}}, "refers to"),
        ({"schema": False}, "something can satisfy"),
        ({"schema": {"type": "integer", "minimum": 4, "maximum": 3}}, "allow at least one integer"),
    ],
)  # fmt: skip
def test_what_cannot_be_held_to_is_refused_by_name(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(tacg.TacgError, match=told):
        byte_automaton(pattern_of(asked) or "")


def test_choices_and_anchors_are_taken_to_the_letter() -> None:
    made = byte_automaton(pattern_of({"choices": ["a.b", "a|b", "$^", "a"]}) or "")
    assert [text for text in ("a.b", "axb", "a|b", "$^", "a", "b", "ab") if reads(made, text)] == [
        "a.b",
        "a|b",
        "$^",
        "a",
    ]
    assert [pattern_of({"regex": each}) for each in ("^a$", r"a\$", "a")] == ["a", r"a\$", "a"]


names = st.text('ab"\\é {', min_size=1, max_size=3)
bounds = st.integers(-120, 120)
scalars = st.one_of(
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")]),
    st.tuples(bounds, st.integers(0, 300)).map(lambda b: {"type": "integer", "minimum": b[0], "maximum": b[0] + b[1]}),
    bounds.map(lambda low: {"type": "integer", "exclusiveMinimum": low}),
    bounds.map(lambda high: {"type": "integer", "maximum": high}),
    st.tuples(st.integers(0, 2), st.integers(2, 4)).map(
        lambda b: {"type": "string", "minLength": b[0], "maxLength": b[1]}
    ),
    st.lists(st.none() | st.booleans() | bounds | names, min_size=1, max_size=3).map(lambda some: {"enum": some}),
    st.sampled_from([{}, {"type": ["string", "null"]}, {"type": "object"}, {"type": "array"}]),
    names.map(lambda each: {"const": {each: [1, each]}}),
)


def composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.dictionaries(names, inner, max_size=3).flatmap(
        lambda fields: (
            st.lists(st.sampled_from([*fields]), unique=True).map(
                lambda required: {
                    "type": "object",
                    "properties": fields,
                    "required": required,
                    "additionalProperties": False,
                }
            )
            if fields
            else st.just({"type": "object", "additionalProperties": False})
        )
    )
    arrays = st.tuples(inner, st.integers(0, 2), st.integers(2, 3)).map(
        lambda t: {"type": "array", "items": t[0], "minItems": t[1], "maxItems": t[2]}
    )
    pairs = st.lists(inner, min_size=1, max_size=2)
    tuples = pairs.map(
        lambda some: {"type": "array", "prefixItems": some, "minItems": len(some), "maxItems": len(some)}
    )
    return objects | arrays | tuples | pairs.map(lambda some: {"anyOf": some})


def walk(pattern: str, seed: int) -> str:
    """A random text of the automaton; beyond thirty bytes, straight to the nearest end."""
    table, accept, state = byte_automaton(pattern)
    dice, text = random.Random(seed), bytearray()
    distance = np.where(accept, 0, 10**6)  # bytes to the nearest end
    for _ in range(len(table)):
        distance = np.minimum(distance, distance[table].min(axis=1) + 1)
    while not accept[state] or dice.random() < 0.6:
        options = [byte for byte in range(256) if table[state, byte] != len(table) - 1]
        if len(text) > 30:
            options = [byte for byte in options if distance[table[state, byte]] < distance[state]]
        if not options:
            break
        text.append(dice.choice(options))
        state = int(table[state, text[-1]])
    return text.decode()


@settings(max_examples=150, deadline=None)
@given(st.recursive(scalars, composed, max_leaves=4), st.integers(0, 10**6))
def test_every_text_of_a_schema_parses_and_validates(schema: dict[str, Any], seed: int) -> None:
    pattern = pattern_of({"schema": schema})
    assert pattern is not None
    jsonschema.Draft202012Validator(schema).validate(json.loads(walk(pattern, seed)))


@settings(max_examples=200, deadline=None)
@given(bounds, st.integers(0, 1500), st.integers(-2000, 2000))
def test_bounds_of_integers_are_exact(low: int, more: int, number: int) -> None:
    pattern = pattern_of({"schema": {"type": "integer", "minimum": low, "maximum": low + more}})
    assert bool(re.fullmatch(pattern or "", str(number))) == (low <= number <= low + more)
