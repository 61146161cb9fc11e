"""The history of trajectories: the EMA reference and the previous posterior. Nothing else keeps them."""

from __future__ import annotations

import torch
from torch import Tensor

from tacg.errors import TacgError
from tacg.pages import hold_in_large_pages, let_go

WORTHWHILE = 1 << 16  # bytes of a position's history from which on they are given back one by one
KINDS = {"fp32": torch.float32, "bf16": torch.bfloat16, "hidden": torch.float32}


class Memory:
    """History of R rows x W positions, addressed by slot = row * W + position.

    kind       `fp32` or `bf16` keep the EMA of logits in that type; `hidden` keeps the EMA of the hidden states that
               the logits are made of, which is the same thing before the output layer, and much smaller
    seen       bool  [R * W]          the position was observed in the last scan, so its history is valid
    reference  float [R * W, V or H]  the EMA, when asked for; of logits up to a constant for each position
    previous   float [R * W, V]       logarithm of the last smoothed posterior, when asked for (Triton: logits)
    gauge, norm  float [R * W]        Triton's: what the reference and `previous` are off by

    A position that was not part of the last scan has no trajectory: it starts neutral when it comes (back).
    Memory that no trajectory needs is given back to the system as positions are committed.
    """

    @torch.inference_mode(False)  # here and below: memory made in one mode is of use in the other
    def __init__(self, rows: int, width: int, device: torch.device | str = "cpu", kind: str = "fp32") -> None:
        if kind not in KINDS:
            raise TacgError(f"`memory` must be one of {', '.join(KINDS)}, got {kind!r}.")
        self.width, self.kind = width, kind
        self.seen = torch.zeros(rows * width, dtype=torch.bool, device=device)
        self.gauge, self.norm = (torch.zeros(rows * width, device=device) for _ in range(2))
        self.reference: Tensor | None = None
        self.previous: Tensor | None = None

    @torch.inference_mode(False)
    def grow(self, rows: int) -> None:
        """Make room for `rows` rows in all; the new ones are unseen."""
        before, self.seen = self.seen, self.seen.new_zeros(rows * self.width)
        self.seen[: len(before)] = before
        self.gauge, self.norm = (torch.cat([x, x.new_zeros(len(self.seen) - len(x))]) for x in (self.gauge, self.norm))
        for name in ("reference", "previous"):
            if (old := getattr(self, name)) is not None:
                setattr(self, name, new := old.new_empty(len(self.seen), old.shape[1]))
                for slot in before.nonzero().squeeze(1).tolist():  # untouched pages take no memory
                    new[slot] = old[slot]

    def forget(self, row: int) -> None:
        """End the trajectories of a row: it left, or moved to another block."""
        self.seen[row * self.width : (row + 1) * self.width] = False

    @torch.inference_mode(False)
    def saw(self, slots: Tensor, among: Tensor | None = None, written: Tensor | None = None) -> None:
        """Note whose trajectories go on; every other one (of the slots `among`, if given) has ended.

        written  slots whose history was moved on, whether or not it is kept
        """
        before = self.seen
        self.seen = torch.zeros_like(before) if among is None else before.index_fill(0, among, False)
        self.seen[slots] = True
        for store in (self.reference, self.previous):
            if store is not None and store.device.type == "cpu" and store[0].nbytes >= WORTHWHILE:
                used = before if written is None else before.index_fill(0, written, True)
                for slot in (used & ~self.seen).nonzero().squeeze(1).tolist():
                    let_go(store[slot])

    @torch.inference_mode(False)
    def store(self, name: str, like: Tensor) -> Tensor:
        """The store `reference` or `previous`, made on first use for rows like those of `like` [P, V or H]."""
        found: Tensor | None = getattr(self, name)
        if found is None:
            kind = torch.promote_types(like.dtype, torch.float32)
            if name == "reference" and self.kind == "bf16":
                kind = torch.bfloat16
            found = like.new_empty(len(self.seen), like.shape[1], dtype=kind)
            setattr(self, name, found)
            if found.device.type == "cpu":
                hold_in_large_pages(found)
        return found
