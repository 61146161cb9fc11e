"""The V-sized history of trajectories: the EMA reference, previous posteriors, credit. Nothing else keeps them."""

from __future__ import annotations

import torch
from torch import Tensor

from tacg.errors import TacgError
from tacg.madvise import hold_in_large_pages, let_go

WORTHWHILE = 1 << 16  # bytes of a position's history from which on they are given back one by one
KINDS = {"fp32": torch.float32, "bf16": torch.bfloat16, "hidden": torch.float32}
STORES = ("reference", "previous", "credit", "past")


class Memory:
    """History of R rows x W positions, addressed by slot = row * W + position in the row's window.

    kind       `fp32` or `bf16` keep the EMA of logits in that type; `hidden` keeps the EMA of the hidden states that
               the logits are made of, which is the same thing before the output layer, and much smaller
    reference  float [R * W, V or H]  the EMA, when asked for; of logits up to a constant for each position
    previous   float [R * W, V]       logarithm of the last smoothed posterior, when asked for (Triton: logits)
    credit     float [R * W, V]       what tokens have earned, when asked for
    past       float [R * W, D, V]    as `previous`, of the last D steps in turn, when asked for
    age        int64 [R * W]          how many posteriors `past` has seen of a trajectory
    gauge, norm  float [R * W]        Triton's: what the reference and `previous` are off by

    Who may read a slot is not known here: `Trajectories` says where a history begins.
    """

    @torch.inference_mode(False)  # here and below: memory made in one mode is of use in the other
    def __init__(self, rows: int, width: int, device: torch.device | str = "cpu", kind: str = "fp32") -> None:
        if kind not in KINDS:
            raise TacgError(f"`memory` must be one of {', '.join(KINDS)}, got {kind!r}.")
        self.rows, self.width, self.kind = rows, width, kind
        self.gauge, self.norm = (torch.zeros(rows * width, device=device) for _ in range(2))
        self.age = torch.zeros(rows * width, dtype=torch.int64, device=device)
        self.reference: Tensor | None = None
        self.previous: Tensor | None = None
        self.credit: Tensor | None = None
        self.past: Tensor | None = None

    @torch.inference_mode(False)
    def take_over(self, other: Memory, before: Tensor, after: Tensor) -> None:
        """Go on with what another memory holds in the slots `before`, in the slots `after`, int64 [P] each."""
        for name in ("gauge", "norm", "age", *STORES):
            if (old := getattr(other, name)) is not None:
                new = old.new_empty(self.rows * self.width, *old.shape[1:])
                for source, target in zip(before.tolist(), after.tolist(), strict=True):  # untouched pages stay free
                    new[target] = old[source]
                setattr(self, name, new)

    @property
    def large(self) -> list[Tensor]:
        """Histories on a CPU that are worth giving back to the system position by position."""
        stores: list[Tensor | None] = [getattr(self, name) for name in STORES]
        return [s for s in stores if s is not None and s.device.type == "cpu" and s[0].nbytes >= WORTHWHILE]

    def release(self, slots: Tensor) -> None:
        """These trajectories are over: give back the memory of large histories."""
        for store in self.large:
            for slot in slots.tolist():
                let_go(store[slot])

    @torch.inference_mode(False)
    def store(self, name: str, like: Tensor, *depth: int) -> Tensor:
        """One of `STORES`, made on first use for rows like those of `like` [P, V or H], `depth` of them each."""
        found: Tensor | None = getattr(self, name)
        if found is None:
            kind = torch.promote_types(like.dtype, torch.float32)
            if name == "reference" and self.kind == "bf16":
                kind = torch.bfloat16
            found = like.new_empty(self.rows * self.width, *depth, like.shape[1], dtype=kind)
            setattr(self, name, found)
            if found.device.type == "cpu":
                hold_in_large_pages(found)
        return found
