"""Canvases with holes: text in which some parts are given and holes, anywhere, are to be filled."""

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
    """A hole of up to `length` tokens. The model may leave some of them empty by writing end of text."""

    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise TacgError(f"A hole must have at least 1 token, got {self.length}.")


@dataclass(frozen=True, slots=True)
class Canvas:
    """Given parts and holes, in order.

        Canvas.parse("def f(x):\\n    ⟨20⟩\\n    return y")     ⟨n⟩ is a hole of n tokens
        Canvas(("The capital of ", Hole(2), " is Paris."))     built from parts instead

    parts   texts, ids and holes
    prompt  a prompt before the canvas, sent as a user turn if the model has a chat template
    """

    parts: tuple[str | tuple[int, ...] | Hole, ...]
    prompt: str | None = None

    def __post_init__(self) -> None:
        if not any(isinstance(part, Hole) for part in self.parts):
            raise TacgError("A canvas must have a hole: write ⟨8⟩ where 8 tokens are to be filled, or use Hole(8).")

    @classmethod
    def parse(cls, text: str, prompt: str | None = None) -> Canvas:
        """Parse a text in which ⟨n⟩ marks a hole of n tokens."""
        pieces = HOLE.split(text)  # text, length, text, length, …, text
        parts = [Hole(int(piece)) if place % 2 else piece for place, piece in enumerate(pieces)]
        return cls(tuple(part for part in parts if part != ""), prompt)

    @classmethod
    def of_ids(cls, ids: Sequence[int], mask_id: int) -> Canvas:
        """Build a canvas from ids; runs of the mask id become holes."""
        parts: list[tuple[int, ...] | Hole] = []
        for token in ids:
            last = parts[-1] if parts else None
            if token == mask_id:
                parts[-1:] = [Hole(last.length + 1)] if isinstance(last, Hole) else [*parts[-1:], Hole(1)]
            else:
                parts[-1:] = [(*last, token)] if isinstance(last, tuple) else [*parts[-1:], (token,)]
        return cls(tuple(parts))

    def ids(self, encode: Callable[[str], list[int]], mask_id: int) -> list[int]:
        """The canvas as ids. Texts are encoded piece by piece, so that no token extends into a hole."""
        found: list[int] = []
        for part in self.parts:
            if isinstance(part, Hole):
                found += [mask_id] * part.length
            else:
                found += encode(part) if isinstance(part, str) else part
        return found
