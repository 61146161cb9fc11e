"""Keys and values that are kept from one step to the next, and which part of a row each mode computes.

none    everything, every step.
prefix  (Fast-dLLM) the part before the block is computed once per block. Approximate: attention is bidirectional, so
        the true prefix changes with every committed token.
dual    (Fast-dLLM) only the block is computed; the parts before *and after* it once per block. Approximate, too.
block   for block-causal models (LLaDA2): the part before the block never changes. Exact.

Every mode is the same procedure with different spans: compute [start, stop), write its keys and values into the row's
cache, and let it attend to the cache up to `reach`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tacg.errors import TacgError

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.models.base import ModelSpec
    from tacg.types import Needs

MODES = ("auto", "none", "prefix", "dual", "block")


class Store:
    """Keys and values of several rows in every layer, side by side: [rows, room, 2 * heads, head_dim].

    They are allocated at the first write.
    """

    def __init__(self) -> None:
        self.rows = self.room = 0
        self.layers: list[Tensor] = []

    def row(self, slot: int, length: int, rows: int = 1) -> Cache:
        """The cache of the row in a slot. The store grows if it must, to at least `rows` rows."""
        rows, room = max(self.rows, rows, slot + 1), max(self.room, length)
        if (rows, room) != (self.rows, self.room):
            self.layers = [self._larger(held, rows, room) for held in self.layers]
            self.rows, self.room = rows, room
        return Cache(length, self, slot)

    @torch.inference_mode(False)  # models write to it in another mode
    def _larger(self, held: Tensor, rows: int, room: int) -> Tensor:
        made = held.new_zeros(rows, room, *held.shape[2:])
        made[: self.rows, : self.room] = held
        return made

    def layer(self, layer: int, like: Tensor, heads: int) -> Tensor:
        """All keys and values of a layer, with this many heads in total; `like` gives head_dim, type and device."""
        while len(self.layers) <= layer:
            self.layers.append(like.new_zeros(self.rows, self.room, heads, like.shape[-1]))
        return self.layers[layer]

    def write(self, layer: int, places: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [N, 2 * heads, head_dim] at `places`, indices into [rows * room].

        Returns all keys and all values, [rows * room, heads, head_dim] each.
        """
        held = self.layer(layer, pair, pair.shape[1]).flatten(0, 1).index_copy_(0, places, pair)
        keys, values = held.chunk(2, dim=1)
        return keys, values


class Cache:
    """One row's keys and values in every layer, [length, heads, head_dim] each: its slot of a store."""

    def __init__(self, length: int, store: Store | None = None, slot: int = 0) -> None:
        self.length, self.slot = length, slot
        self.store = store or Store()
        if store is None:
            self.store.row(0, length)

    def held(self, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values of a layer that was written to."""
        keys, values = self.store.layers[layer][self.slot, : self.length].chunk(2, dim=1)
        return keys, values

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write what was computed from `start` on; returns the keys and values of the whole row."""
        self.store.layer(layer, keys, 2 * keys.shape[1])
        kept, held = self.held(layer)
        kept[start : start + len(keys)] = keys
        held[start : start + len(values)] = values
        return kept, held


def resolve_mode(mode: str, observe: str, spec: ModelSpec, needs: Needs | None = None) -> str:
    """The cache mode for a model and a decode; `auto` is the exact one: `block` or `none`."""
    causal = spec.causal_block is not None
    if mode == "auto":
        mode = "block" if causal else "none"
    if causal and mode in ("prefix", "dual"):
        raise TacgError(f"`cache` must be auto, none or block for the block-causal {spec.name!r}, got {mode!r}.")
    if not causal and mode == "block":
        raise TacgError(
            f"`cache` must be auto, none, prefix or dual for {spec.name!r}, which sees all blocks; got 'block'."
        )
    if needs is not None and (needs.scope != "block" or needs.suffix is not None or "recheck" in needs):
        _check_needs(needs, mode, spec)
    if observe == "sequence" and (mode == "dual" or causal):
        raise TacgError(
            f"`observe` must be 'block' with cache {mode!r} of {spec.name!r}: later blocks are not computed there."
        )
    return mode


def _check_needs(needs: Needs, mode: str, spec: ModelSpec) -> None:
    """Raise if what a policy reads is not computed."""
    causal = spec.causal_block is not None
    if needs.branches and (mode != "none" or causal):
        raise TacgError(f"`cache` must be none for a policy that looks ahead, got {mode!r} of {spec.name!r}.")
    if needs.scope == "answer" and (mode == "dual" or causal):
        raise TacgError(f"This policy looks at the whole answer, but cache {mode!r} of {spec.name!r} computes a block.")
    if needs.suffix is not None and (needs.scope == "answer" or needs.branches):
        raise TacgError("A policy that leaves out most of the suffix cannot look ahead or at the whole answer.")
    if needs.suffix is not None and needs.scope == "open" and mode == "dual":
        raise TacgError("`cache` must be none or prefix if blocks open early and the suffix is left out, got 'dual'.")
    if "recheck" not in needs:
        return
    if mode in ("prefix", "dual"):
        raise TacgError(f"`cache` must be auto or none for a policy that rechecks what is written, got {mode!r}.")
    if spec.logit_shift:
        raise TacgError(
            f"This policy rechecks each token by a mask in its place, but {spec.name!r} predicts a token one position "
            "before: use a model without shifted logits, or another policy."
        )
    if needs.branches:
        raise TacgError("A policy cannot recheck what is written and look ahead in one step.")


def window(
    mode: str, spec: ModelSpec, start: int, stop: int, length: int, *, first: bool, settled: int, padding: int
) -> tuple[int, int, int]:
    """(start, stop, reach) of what a step computes.

    start, stop  the active block, as positions of the canvas; `length` is the canvas's
    first        whether this is the block's first step
    settled      up to here the cache holds what will never change (block-causal models)
    padding      see `ModelSpec.padding`
    """
    if spec.causal_block is not None:
        # Shifted logits predict the first token of a block from the block before: the rest of it is not needed then.
        edge = max(stop, spec.block_edge(stop - spec.logit_shift, padding))
        left = 0 if mode == "none" else settled - spec.logit_shift  # logits are shifted: the position before is read
        return max(0, left), edge, edge
    if mode == "none" or first:
        return 0, length, length
    left = max(0, start - spec.logit_shift)
    return (left, length, length) if mode == "prefix" else (left, stop, length)
