"""Qwen2 natively (Yang et al., "Qwen2.5 Technical Report", 2024): Dream's body, but each position sees only what is
before it.

It writes from left to right and knows no mask, so it cannot be decoded here. It is what a draft is checked against
(`apd`). As with Dream, what comes out is aligned: position i predicts token i.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacg.models.dream import Dream, DreamConfig
from tacg.models.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class Qwen2(Dream):
    """The network. Small ones read and write with one table, which their checkpoints hold once or twice."""

    block = 1

    def __init__(self, config: DreamConfig, *, tied: bool) -> None:
        super().__init__(config)
        self.tied = tied
        if tied:
            del self.lm_head

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Qwen2:
        """From the parsed config.json."""
        tied = Fields(config, "qwen2").flag("tie_word_embeddings", False)
        return cls(DreamConfig.read({**config, "tie_word_embeddings": False}, "qwen2"), tied=tied)

    @property
    def table(self) -> Tensor:
        """The output table [V, D]."""
        parts: Any = self.model
        table: Tensor = parts["embed_tokens"].weight if self.tied else self.lm_head.weight
        return table

    def placed(self, name: str) -> tuple[str, int | None] | None:
        """Where a tensor of the checkpoint goes. None: the second copy of a tied table."""
        return None if self.tied and name == "lm_head.weight" else (name, None)
