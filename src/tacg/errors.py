"""Errors a user can act on. Each message names the thing, the constraint, the value and the next step."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


LONGEST = 80  # maximum characters of a name repeated in a message
NEAREST, FEW = 3, 8  # names that are suggested; names that are all listed
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


def unknown(kind: str, name: str, known: Iterable[str], listed_by: str = "") -> UnknownNameError:
    """Build the error for an unknown `name`: the nearest names; all of them only if they are few.

    listed_by  the command that lists all names
    """
    names = sorted(known)
    name = name if len(name) <= LONGEST else name[:LONGEST] + "…"
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if len(names) > FEW and (others := difflib.get_close_matches(name, names, n=NEAREST, cutoff=0.6)[1:]):
        hint += f" Also near: {', '.join(map(repr, others))}."
    if len(names) <= FEW:
        rest = f" Available: {', '.join(names) or 'none'}."
    elif listed_by:
        rest = f" `{listed_by}` lists all {len(names)}."
    else:
        rest = "" if near else f" There are {len(names)}, such as {', '.join(names[:NEAREST])}."
    return UnknownNameError(f"Unknown {kind} {name!r}.{hint}{rest}")
