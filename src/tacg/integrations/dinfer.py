"""TACG as a decoder of dInfer: `BlockDiffusionLLM(model, TacgDecoder(...), ...)`.

Install dInfer yourself (the package of that name on PyPI is a different one); it is not imported here. Its runners call
`block_init` when a block begins and `decode` after every forward, sometimes also for blocks that are full. Its batches
do not change, so a row of the batch is a request. One decoder serves one batch at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tacg.errors import LogitsError, TacgError
from tacg.integrations.blocks import Block, Blocks, stable_seed
from tacg.integrations.settings import read_settings

if TYPE_CHECKING:
    from torch import Tensor


class TacgDecoder:
    """Decides in `decode` which proposals are written.

    mask_id, eos_id  ids of the checkpoint; dInfer's runners read both
    settings         names and values as in SGLang's YAML file: base, threshold, k_extra, memory, …
    """

    def __init__(self, mask_id: int = 126336, eos_id: int = 126081, **settings: Any) -> None:
        self.mask_id, self.eos_id = mask_id, eos_id
        self.policy, self.settings = read_settings(settings)
        self.temperature = self.settings.temperature
        self.blocks: Blocks | None = None
        self.rows: list[Block] = []

    def block_init(self, block_x: Tensor, block_id: int) -> None:
        """A block begins: block_x int64 [B, W], or anything with as many rows and positions."""
        rows, width = block_x.shape
        if self.blocks is None or self.blocks.width != width:
            self.blocks = Blocks(self.policy, self.settings, width, [self.mask_id], most=rows)
        for block in self.rows:
            self.blocks.release(block)
        self.rows = [Block(stable_seed(self.settings.seed, row, block_id)) for row in range(rows)]

    def decode(
        self, logits: Tensor, block_start: int, block_end: int, x: Any, iter_threshold: float | None = None
    ) -> None:
        """Write into `x`, int64 [B, T], at the positions [block_start, block_end). logits float [B, W, V].

        `iter_threshold`, by which a runner moves the threshold of dInfer's own decoders, must be None.
        """
        if iter_threshold is not None:
            raise TacgError(f"`iter_threshold` must be None, as TACG has its own threshold; got {iter_threshold!r}.")
        ids = x[:, block_start:block_end]
        if self.blocks is None or tuple(ids.shape) != (len(self.rows), self.blocks.width):
            raise TacgError(
                f"decode() of {len(ids)} x {block_end - block_start} positions must follow block_init() of as many."
            )
        masked = ids == self.mask_id
        at_work = {row: self.rows[row] for row in masked.any(dim=1).nonzero().squeeze(1).tolist()}
        if not at_work:
            return
        written = self.blocks.step(logits.flatten(0, 1), masked, at_work)
        if written.failed:
            raise LogitsError(
                f"Unusable logits (NaN, +inf or only -inf) in row {written.failed[0]}: check the model's dtype.",
                [(row, block_start) for row in written.failed],
            )
        x[:, block_start:block_end] = torch.where(written.commit, written.tokens, ids)
