"""Errors a user can act on. Each message names the thing, the constraint, the value and the next step."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


LONGEST = 80  # letters of a name that are repeated
MESSAGE = 2400  # letters of a message: what it repeats may be a whole book


class TacgError(ValueError):
    """Something the user can mend; the command line prints it without a traceback."""

    def __init__(self, message: str = "") -> None:
        half = MESSAGE // 2
        super().__init__(message if len(message) <= MESSAGE else f"{message[:half]} … {message[-half:]}")


class UnknownNameError(TacgError):
    """A name that nothing answers to."""


class LogitsError(TacgError):
    """Logits that no decision can be taken from, with the place they were found: `where` is [(row, position), …]."""

    def __init__(self, message: str, where: list[tuple[int, int]]) -> None:
        super().__init__(message)
        self.where = where


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Build the error for an unknown `name`: the nearest match first, then everything there is."""
    names = sorted(known)
    name = name if len(name) <= LONGEST else name[:LONGEST] + "…"
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UnknownNameError(f"Unknown {kind} {name!r}.{hint} Available: {', '.join(names) or 'none'}.")
