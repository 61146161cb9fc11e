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
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise TacgError(f"A setting must be written name=value, got {pair!r}.")
        if name not in known:
            raise unknown("setting", name, known)
        found[name] = known[name].parse(value)
    return found


def print_json(document: Any) -> None:
    """One JSON document as the last line of stdout."""
    typer.echo(json.dumps(document, ensure_ascii=False))
