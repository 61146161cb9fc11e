"""What several verbs share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from tacg.errors import TacgError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterable


def parse_settings(policy: str, pairs: Iterable[str]) -> dict[str, Any]:
    """`name=value` words as typed settings of the policy or of the decode."""
    from tacg.engine.request import Decode
    from tacg.policies import get_policy

    known = Decode().knobs() | get_policy(policy).knobs()
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise TacgError(f"A setting must be written name=value, got {pair!r}.")
        if name == "suppress":
            found[name] = tuple(_id(word) for word in value.split(","))
        elif name in known:
            found[name] = known[name].parse(value)
        else:
            raise unknown("setting", name, [*known, "suppress"])
    return found


def _id(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise TacgError(f"`suppress` must be token ids with commas between, got {word!r}.") from None


def print_json(document: Any) -> None:
    """One JSON document as the last line of stdout."""
    typer.echo(json.dumps(document))
