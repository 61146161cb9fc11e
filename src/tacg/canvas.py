"""Canvases with holes: text in which some places are given and the others are to be filled, anywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HOLE = re.compile(r"⟨(\d{1,6})⟩")


@dataclass(frozen=True, slots=True)
class Hole:
    """So many tokens to fill. A model may leave some of them empty (end of text), so a hole is a most, not a must."""

    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise TacgError(f"A hole must have at least 1 token, got {self.length}.")


@dataclass(frozen=True, slots=True)
class Canvas:
    """What is given and what is to be filled, in order.

        Canvas.parse("def f(x):\\n    ⟨20⟩\\n    return y")     ⟨n⟩ is a hole of n tokens
        Canvas(("The capital of ", Hole(2), " is Paris."))     the same without the marks

    parts   texts, ids and holes
    prompt  what the model is told before it, as a user's turn if the model has a chat template
    """

    parts: tuple[str | tuple[int, ...] | Hole, ...]
    prompt: str | None = None

    def __post_init__(self) -> None:
        if not any(isinstance(part, Hole) for part in self.parts):
            raise TacgError("A canvas must have a hole: write ⟨8⟩ where 8 tokens are to be filled, or use Hole(8).")

    @classmethod
    def parse(cls, text: str, prompt: str | None = None) -> Canvas:
        """A text in which ⟨n⟩ marks a hole of n tokens."""
        pieces = HOLE.split(text)  # text, length, text, length, …, text
        parts = [Hole(int(piece)) if place % 2 else piece for place, piece in enumerate(pieces)]
        return cls(tuple(part for part in parts if part != ""), prompt)

    @classmethod
    def of_ids(cls, ids: Sequence[int], mask_id: int) -> Canvas:
        """Ids, the mask's id where a hole is."""
        parts: list[tuple[int, ...] | Hole] = []
        for token in ids:
            last = parts[-1] if parts else None
            if token == mask_id:
                parts[-1:] = [Hole(last.length + 1)] if isinstance(last, Hole) else [*parts[-1:], Hole(1)]
            else:
                parts[-1:] = [(*last, token)] if isinstance(last, tuple) else [*parts[-1:], (token,)]
        return cls(tuple(parts))

    def ids(self, encode: Callable[[str], list[int]], mask_id: int) -> list[int]:
        """The canvas as ids; texts are encoded piece by piece, so that no token reaches into a hole."""
        found: list[int] = []
        for part in self.parts:
            if isinstance(part, Hole):
                found += [mask_id] * part.length
            else:
                found += encode(part) if isinstance(part, str) else part
        return found
