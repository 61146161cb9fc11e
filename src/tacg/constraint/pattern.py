"""Choices, regular expressions and JSON schemas are all one thing: a regular expression that the answer matches."""

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
        raise TacgError(f"An answer can be held to one of {', '.join(NAMES)}; got {' and '.join(given)}.")
    for name, value in given.items():
        return {"schema": _schema, "regex": _regex, "choices": _choices}[name](value)
    return None


def _schema(schema: Any) -> str:
    make = getattr(schema, "model_json_schema", None)
    schema = make() if make is not None else schema
    if not isinstance(schema, Mapping | bool):
        raise TacgError(f"`schema` must be a JSON schema, a mapping, or a pydantic model; got {schema!r}.")
    return schema_pattern(schema)


def _regex(regex: Any) -> str:
    if not isinstance(regex, str):
        raise TacgError(f"`regex` must be a text, got {regex!r}.")
    # The whole answer is matched anyhow, so the anchors that many write say nothing new.
    whole: str = regex.removeprefix("^")
    body = whole.removesuffix("$")
    escaped = (len(body) - len(body.rstrip("\\"))) % 2 == 1
    return whole if escaped else body


def _choices(choices: Any) -> str:
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not choices:
        raise TacgError(f"`choices` must be a non-empty list of texts, got {choices!r}.")
    if wrong := [each for each in choices if not isinstance(each, str) or not each]:
        raise TacgError(f"`choices` must be texts that are not empty, got {wrong[0]!r}.")
    return "|".join(map(literal, choices))
