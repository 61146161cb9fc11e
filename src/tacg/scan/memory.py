"""The V-sized history of a trajectory: the EMA reference and the previous posterior. Nothing else keeps them."""

from __future__ import annotations

import torch
from torch import Tensor


class Memory:
    """History of R rows x W positions, addressed by slot = row * W + position.

    seen       bool  [R * W]     the position was observed in the last scan, so its history is valid
    reference  float [R * W, V]  EMA of logits (gauge-fixed: the largest logit is 0), when asked for
    previous   float [R * W, V]  posterior of the last observation, when asked for

    A position that was not part of the last scan has no trajectory: it starts neutral when it comes (back).
    """

    def __init__(self, rows: int, width: int, device: torch.device | str = "cpu") -> None:
        self.width = width
        self.seen = torch.zeros(rows * width, dtype=torch.bool, device=device)
        self.reference: Tensor | None = None
        self.previous: Tensor | None = None

    def grow(self, rows: int) -> None:
        """Make room for `rows` rows in all; the new ones are unseen."""
        self.seen = _longer(self.seen, rows * self.width)
        if self.reference is not None:
            self.reference = _longer(self.reference, rows * self.width)
        if self.previous is not None:
            self.previous = _longer(self.previous, rows * self.width)

    def forget(self, row: int) -> None:
        """End the trajectories of a row: it left, or moved to another block."""
        self.seen[row * self.width : (row + 1) * self.width] = False

    def saw(self, slots: Tensor) -> None:
        """Note which slots were observed in this scan; every other trajectory has ended."""
        self.seen.zero_()
        self.seen[slots] = True

    def store(self, name: str, like: Tensor) -> Tensor:
        """The store `reference` or `previous`, made on first use with the vocabulary and dtype of `like` [P, V]."""
        if getattr(self, name) is None:
            setattr(self, name, like.new_zeros(len(self.seen), like.shape[1]))
        found: Tensor = getattr(self, name)
        return found


def _longer(store: Tensor, length: int) -> Tensor:
    return torch.cat([store, store.new_zeros(length - len(store), *store.shape[1:])])
