"""Qwen2 natively (Yang et al., "Qwen2.5 Technical Report", 2024): Dream's body, with blocks.

Qwen2 itself is causal: it writes from left to right and has no mask, so it cannot be decoded here; it serves as a
verifier of drafts (`apd`). In Fast-dLLM v2 (Wu et al., "Fast-dLLM v2: Efficient Block-Diffusion LLM", 2025) a position
also sees its own block. In both, the output is aligned: position i predicts token i. The first token of a block is
predicted by the last position of the block before it, which is complete, and so it is written before all others (see
`ModelSpec.edges`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacg.models.dream import Dream, DreamConfig
from tacg.models.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

FAST_DLLM = "Fast_dLLM_Qwen"
SUB_BLOCK = 8  # of Fast-dLLM v2's blocks so much is decoded at a time, in its authors' loop


class Qwen2(Dream):
    """The network. Small ones have one table for embeddings and output, which checkpoints contain once or twice."""

    def __init__(self, config: DreamConfig, *, tied: bool, block: int = 1) -> None:
        super().__init__(config)
        self.tied, self.block = tied, block
        self.sub_block = None if block % SUB_BLOCK else SUB_BLOCK
        if tied:
            del self.lm_head

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Qwen2:
        """From the parsed config.json."""
        family = str(config.get("model_type"))
        fields = Fields(config, family)
        tied = fields.flag("tie_word_embeddings", False)
        block = fields.size("bd_size", 32) if family == FAST_DLLM else 1
        return cls(DreamConfig.read({**config, "tie_word_embeddings": False}, family), tied=tied, block=block)

    @property
    def table(self) -> Tensor:
        """The output table [V, D]."""
        parts: Any = self.model
        table: Tensor = parts["embed_tokens"].weight if self.tied else self.lm_head.weight
        return table

    def placed(self, name: str) -> tuple[str, int | None] | None:
        """Where a tensor of the checkpoint goes. None: the second copy of a tied table."""
        return None if self.tied and name == "lm_head.weight" else (name, None)
