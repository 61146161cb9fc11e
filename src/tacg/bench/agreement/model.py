"""Our model in the shape that other people's decoding loops call: ids in, an object with `.logits` out.

It accepts what these loops pass: attention masks, position ids, and keys and values of earlier forwards. It records
every canvas that it is shown, which is all that is needed to compare two decoders.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacg.errors import TacgError
from tacg.models.base import Span
from tacg.models.llada import Llada
from tacg.models.rows import PackedRows

if TYPE_CHECKING:
    from tacg.llm import LLM

KeptKeys = list[tuple[Tensor, Tensor]]  # rotated keys, and values, of each layer: [1, KV, T, D]

FOREIGN_MASK = 126336  # LLaDA's mask id, which some loops hard-code
NEVER = -1e9  # finite in sums, but probability 0 in every float type


class SeenRow(PackedRows):
    """One row at any positions, under any mask, after keys and values of earlier forwards."""

    def __init__(
        self, config: Any, position: Tensor, mask: Tensor | None, past: KeptKeys | None, replace: Tensor | None
    ) -> None:
        length = int(position.max()) + 1
        rotary = config.d_model // config.n_heads
        super().__init__(
            [Span(0, length, length)], rotary, config.rope_theta, device=position.device, dtype=torch.float32, wide=True
        )
        self.cos, self.sin = self.cos[position], self.sin[position]
        self.mask, self.past, self.replace = mask, past, replace
        self.present: KeptKeys = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, pair: Tensor | None = None) -> Tensor:
        """q [N, H, D], k and v [N, KV, D], already rotated -> [N, H * D]."""
        keys, values = (x.transpose(0, 1)[None] for x in (k, v))
        if self.past is not None and self.replace is not None:
            kept = tuple(x.clone() for x in self.past[layer])
            kept[0][:, :, self.replace], kept[1][:, :, self.replace] = keys, values
            keys, values = kept
        elif self.past is not None:
            keys, values = (torch.cat(pair, dim=2) for pair in zip(self.past[layer], (keys, values), strict=True))
        self.present.append((keys, values))
        mixed = F.scaled_dot_product_attention(q.transpose(0, 1)[None], keys, values, attn_mask=self.mask)
        return mixed[0].transpose(0, 1).flatten(1)


class SeenModel(nn.Module):
    """A LLaDA body with the usual call. `canvases` holds what it was shown: ids of the whole canvas, int64 [T].

    shift  logits are handed out one position early, for loops that shift them back (Dream's)
    """

    def __init__(self, llm: LLM, *, shift: bool = False) -> None:
        super().__init__()
        if not isinstance(llm.model, Llada):
            raise TacgError(f"Agreement is measured with a LLaDA body such as pocket, got {llm.model.spec.family!r}.")
        self.network, self.shift = llm.model, shift
        self.spec = llm.model.spec
        self.config = SimpleNamespace(vocab_size=llm.model.table.shape[0])
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.canvases: list[Tensor] = []
        self.forwards = 0

    @torch.no_grad()
    def forward(
        self, input_ids: Tensor, attention_mask: Any = None, position_ids: Any = None, past_key_values: Any = None,
        use_cache: bool = False, replace_position: Tensor | None = None, **_: Any,
    ) -> SimpleNamespace:  # fmt: skip
        """ids [1, N] -> logits [1, N, V], and `past_key_values` for the next forward."""
        ids = input_ids[0].masked_fill(input_ids[0] == FOREIGN_MASK, self.spec.mask_id)
        replace = None if replace_position is None else replace_position[0].nonzero()[:, 0]
        start = 0 if past_key_values is None else int(past_key_values[0][0].shape[2])
        if replace is not None:
            start = int(replace[0])
        position = torch.arange(start, start + len(ids))
        if isinstance(position_ids, Tensor):
            position = position_ids.reshape(-1)[-len(ids) :]
        mask = attention_mask[0, 0] if isinstance(attention_mask, Tensor) and attention_mask.dim() == 4 else None
        row = SeenRow(self.network.config, position, mask, past_key_values, replace)
        logits = self._logits(ids, row)
        self._write_down(ids, position)
        if self.shift:
            logits = torch.cat([logits[1:], logits[-1:]])
        return SimpleNamespace(logits=logits[None], past_key_values=row.present)

    def _logits(self, ids: Tensor, row: SeenRow) -> Tensor:
        parts: Any = self.network.model["transformer"]
        x = parts["wte"](ids)
        for number, layer in enumerate(parts["blocks"]):
            x = layer(number, x, row)
        logits = self.network.head(parts["ln_f"](x))
        logits[:, list(self.spec.unwritable)] = NEVER
        return logits

    def _write_down(self, ids: Tensor, position: Tensor) -> None:
        """A forward of a part leaves the rest of the canvas as it was; a position given twice counts as first given."""
        self.forwards += 1
        canvas = self.canvases[-1].clone() if self.canvases else ids[:0]
        canvas = torch.cat([canvas, ids.new_full((max(0, int(position.max()) + 1 - len(canvas)),), self.spec.mask_id)])
        first = torch.ones_like(position, dtype=torch.bool)
        first[1:] = position[1:] > torch.cummax(position, dim=0).values[:-1]
        canvas[position[first]] = ids[first]
        self.canvases.append(canvas)
