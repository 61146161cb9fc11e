"""Errors a user can act on. Each message names the thing, the constraint, the value and the next step."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


LONGEST = 80  # maximum characters of a name repeated in a message
MESSAGE = 2400  # maximum characters of a message, since it may quote very long input


class TacgError(ValueError):
    """An error that the user can fix; the command line prints it without a traceback."""

    def __init__(self, message: str = "") -> None:
        half = MESSAGE // 2
        super().__init__(message if len(message) <= MESSAGE else f"{message[:half]} … {message[-half:]}")


class UnknownNameError(TacgError):
    """A name that does not exist."""


class LogitsError(TacgError):
    """Unusable logits, with the positions where they were found: `where` is [(row, position), …]."""

    def __init__(self, message: str, where: list[tuple[int, int]]) -> None:
        super().__init__(message)
        self.where = where


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Build the error for an unknown `name`: the nearest match first, then all known names."""
    names = sorted(known)
    name = name if len(name) <= LONGEST else name[:LONGEST] + "…"
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UnknownNameError(f"Unknown {kind} {name!r}.{hint} Available: {', '.join(names) or 'none'}.")
