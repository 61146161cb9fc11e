"""The V-sized history of trajectories: the EMA reference, previous posteriors, credit. It is kept only here."""

from __future__ import annotations

import torch
from torch import Tensor

from tacg.errors import TacgError
from tacg.madvise import hold_in_large_pages, let_go
from tacg.scan.reference import wide_dtype

WORTHWHILE = 1 << 16  # positions whose history has at least this many bytes are freed one by one
KINDS = {"fp32": torch.float32, "bf16": torch.bfloat16, "hidden": torch.float32}
STORES = ("reference", "previous", "credit", "past")


class Memory:
    """History of R rows x W positions, addressed by slot = row * W + position in the row's window.

    kind       `fp32` or `bf16` keep the EMA of logits in that type; `hidden` keeps the EMA of the hidden states that
               the logits are computed from, which is equivalent and much smaller
    reference  float [R * W, V or H]  the EMA, if needed; for logits up to a constant per position
    previous   float [R * W, V]       log of the last smoothed posterior, if needed (Triton: logits)
    credit     float [R * W, V]       the credit of tokens, if needed
    past       float [R * W, D, V]    like `previous`, for the last D steps in turn, if needed
    age        int64 [R * W]          how many posteriors of a trajectory are in `past`
    gauge, norm  float [R * W]        for Triton: the constants by which the reference and `previous` are shifted

    Whether a slot holds valid history is not known here: `Trajectories` records where a history begins.
    """

    @torch.inference_mode(False)  # here and below: memory created in one mode must be usable in the other
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
        """Copy the content of another memory from its slots `before` to the slots `after`, int64 [P] each."""
        for name in ("gauge", "norm", "age", *STORES):
            if (old := getattr(other, name)) is not None:
                new = old.new_empty(self.rows * self.width, *old.shape[1:])
                for source, target in zip(before.tolist(), after.tolist(), strict=True):  # untouched pages cost nothing
                    new[target] = old[source]
                setattr(self, name, new)

    @property
    def large(self) -> list[Tensor]:
        """Histories on a CPU that are large enough to be freed position by position."""
        stores: list[Tensor | None] = [getattr(self, name) for name in STORES]
        return [s for s in stores if s is not None and s.is_cpu and s.nbytes >= WORTHWHILE * len(s)]

    def release(self, slots: Tensor) -> None:
        """Free the memory of large histories; these trajectories are over."""
        for store in self.large:
            for slot in slots.tolist():
                let_go(store[slot])

    def store(self, name: str, like: Tensor, *depth: int) -> Tensor:
        """One of `STORES`, created on first use: `depth` rows like those of `like` [P, V or H] per slot."""
        found: Tensor | None = getattr(self, name)
        return self._create(name, like, *depth) if found is None else found

    @torch.inference_mode(False)
    def _create(self, name: str, like: Tensor, *depth: int) -> Tensor:
        kind = torch.bfloat16 if name == "reference" and self.kind == "bf16" else wide_dtype(like.dtype)
        made = like.new_empty(self.rows * self.width, *depth, like.shape[1], dtype=kind)
        setattr(self, name, made)
        if made.device.type == "cpu":
            hold_in_large_pages(made)
        return made


def put(store: Tensor, rows: Tensor, values: Tensor) -> None:
    """Like `store.index_copy_(0, rows, values)`, which takes four times as long; numpy has no bfloat16."""
    if store.dtype == torch.bfloat16:
        store.index_copy_(0, rows, values)
    else:
        store.numpy()[rows.numpy()] = values.numpy()
