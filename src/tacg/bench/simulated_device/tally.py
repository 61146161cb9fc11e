"""What is counted, and where it came from."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import tacg

if TYPE_CHECKING:
    from types import FrameType

HOME = f"{Path(tacg.__file__).parent}/"
OURS = f"{Path(__file__).parent}/"


class Site(NamedTuple):
    """What is counted: a kernel, read or upload; its phase, its operation, and the source line that caused it."""

    kind: str
    phase: str
    operation: str
    line: str


class Tally(Counter[Site]):
    """How often each site occurred."""

    def count(self, kind: str, *, phase: str | None = None, outside: str | None = None) -> int:
        """The count of one kind, in one phase or in every phase but one."""
        return sum(
            count
            for site, count in self.items()
            if site.kind == kind and phase in (None, site.phase) and (outside is None or site.phase != outside)
        )

    def by(self, field: str) -> dict[str, Counter[str]]:
        """Counts of each kind by a field of `Site`: `phase`, `operation` or `line`."""
        found: dict[str, Counter[str]] = {}
        for site, count in self.items():
            found.setdefault(getattr(site, field), Counter())[site.kind] += count
        return found

    def since(self, before: Tally) -> Tally:
        """What was added after `before` was copied."""
        return Tally({site: count - before[site] for site, count in self.items() if count > before[site]})


def asking_line() -> str:
    """The innermost line of this package on the stack; if there is none, the line that called PyTorch."""
    frame: FrameType | None = sys._getframe(2)
    outside = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OURS):
            if file.startswith(HOME):
                return f"{file.removeprefix(HOME)}:{frame.f_lineno}"
            if not outside and "/torch/" not in file and "contextlib" not in file:
                outside = f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return outside
