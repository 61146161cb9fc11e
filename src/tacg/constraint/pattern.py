"""Choices, regular expressions and JSON schemas all become one regular expression that the answer matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tacg.constraint.schema import literal, schema_pattern
from tacg.errors import TacgError

NAMES = ("schema", "regex", "choices")


def pattern_of(settings: Mapping[str, Any]) -> str | None:
    """The regular expression that these settings ask for, or None if they ask for nothing.

    schema   a JSON schema (a mapping), or a pydantic model
    regex    a regular expression that the whole answer matches
    choices  texts, one of which is the answer
    """
    given = {name: settings[name] for name in NAMES if settings.get(name) is not None}
    if len(given) > 1:
        raise TacgError(f"An answer can have one constraint, one of {', '.join(NAMES)}; got {' and '.join(given)}.")
    for name, value in given.items():
        return {"schema": _schema, "regex": _regex, "choices": _choices}[name](value)
    return None


def patterns_of(settings: Mapping[str, Any], count: int) -> list[str | None]:
    """The same for `count` prompts. A list has one setting per prompt, in which None means no constraint.

    A list of texts gives the choices of every prompt; choices per prompt are a list of lists.
    """
    given = {name: settings[name] for name in NAMES if settings.get(name) is not None}
    if not any(_is_per_prompt(name, value) for name, value in given.items()):
        return [pattern_of(given)] * count
    return [pattern_of(some_of(given, [number], count, one=True)) for number in range(count)]


def some_of(settings: Mapping[str, Any], numbers: Sequence[int], count: int, *, one: bool = False) -> dict[str, Any]:
    """Settings for some of `count` prompts, by number, picked from those that are given per prompt.

    one  there is one number, and its settings are not in lists
    """
    picked = dict(settings)
    for name in NAMES:
        value: Any = settings.get(name)
        if _is_per_prompt(name, value):
            if len(value) != count:
                raise TacgError(
                    f"`{name}` must be one for all prompts or a list with one per prompt, {count}; got {len(value)}."
                )
            picked[name] = value[numbers[0]] if one else [value[number] for number in numbers]
    return picked


def _is_per_prompt(name: str, value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return name != "choices" or (bool(value) and not any(isinstance(each, str) for each in value))


def own_or(shared: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Constraints per prompt: each its own, if it has one, otherwise the shared one."""
    held = [each if any(each.get(name) is not None for name in NAMES) else shared for each in own]
    return {name: [each.get(name) for each in held] for name in NAMES}


def _schema(schema: Any) -> str:
    make = getattr(schema, "model_json_schema", None)
    schema = make() if make is not None else schema
    if not isinstance(schema, Mapping | bool):
        raise TacgError(f"`schema` must be a JSON schema, a mapping, or a pydantic model; got {schema!r}.")
    return schema_pattern(schema)


def _regex(regex: Any) -> str:
    if not isinstance(regex, str):
        raise TacgError(f"`regex` must be a text, got {regex!r}.")
    # The whole answer is matched anyway, so anchors at both ends change nothing.
    whole: str = regex.removeprefix("^")
    body = whole.removesuffix("$")
    escaped = (len(body) - len(body.rstrip("\\"))) % 2 == 1
    return whole if escaped else body


def _choices(choices: Any) -> str:
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not choices:
        raise TacgError(f"`choices` must be a non-empty list of texts, got {choices!r}.")
    if wrong := [each for each in choices if not isinstance(each, str) or not each]:
        raise TacgError(f"`choices` must be non-empty texts, got {wrong[0]!r}.")
    return "|".join(map(literal, choices))
