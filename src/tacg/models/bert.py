"""BERT, RoBERTa and ALBERT natively: masked language models, which are diffusion models with one noise level.

One network under three sets of names. A layer is the same in all of them: attention, then feed-forward, each followed
by a norm after the residual sum. RoBERTa's positions start after its padding id; ALBERT has narrower embeddings and
repeats its few layers. `placed` says where the tensors of a checkpoint go. After the last layer come a small transform,
the embedding table as output table, and a bias. As with LLaDA, a row's logits do not depend on its neighbours, to the
last bit, if widths are multiples of 32.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacg.errors import TacgError
from tacg.models.fields import Fields, short
from tacg.models.layers import STEADY_ROWS, Network, steady_linear, steady_rows
from tacg.models.products import Linear
from tacg.models.rows import packed_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tacg.models.base import Span
    from tacg.models.rows import PackedRows

SUPPORTED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": functools.partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": functools.partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}

# Tensors that masked language modelling does not use: other heads, and tied copies.
UNUSED = re.compile(
    r"(^|\.)pooler\.|^cls\.(?!predictions\.)|^sop_classifier\.|\.position_ids$|\bdecoder\.(weight|bias)$"
)
# From the names of the three families to ours; the first of each pair is a pattern.
NAMES = (
    (r"\.gamma$", ".weight"),  # as the first BERT was saved
    (r"\.beta$", ".bias"),
    (r"^(bert|roberta|albert)\.embeddings\.(\w+)_embeddings\.", r"\2."),
    (r"^(bert|roberta|albert)\.embeddings\.LayerNorm\.", "embedding_norm."),
    (r"^albert\.encoder\.embedding_hidden_mapping_in\.", "widen."),
    (r"^(bert|roberta)\.encoder\.layer\.(\d+)\.", r"groups.\2.0."),
    (r"^albert\.encoder\.albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\.", r"groups.\1.\2."),
    (r"\.attention\.(self\.)?(query|key|value)\.", r".\2."),
    (r"\.attention\.(output\.)?dense\.", ".mixed."),
    (r"\.attention\.(output\.)?LayerNorm\.", ".mixed_norm."),
    (r"\.(intermediate\.dense|ffn)\.", ".inner."),
    (r"\.(output\.dense|ffn_output)\.", ".outer."),
    (r"\.(output\.LayerNorm|full_layer_layer_norm)\.", ".outer_norm."),
    (r"^(cls\.predictions\.transform|lm_head|predictions)\.dense\.", "transform."),
    (r"^(cls\.predictions\.transform|lm_head|predictions)\.(LayerNorm|layer_norm)\.", "transform_norm."),
    (r"^(cls\.predictions|lm_head|predictions)\.bias$", "bias"),
)


@dataclass(frozen=True, slots=True)
class BertConfig:
    """The fields of config.json that shape the network.

    embedded  width of the embeddings; `narrow` if they are widened for the layers
    repeats   how often each group of layers is used, one after the other
    first     row of the position table for the first token of a text
    """

    width: int
    embedded: int
    groups: int
    group_size: int
    repeats: tuple[int, ...]
    heads: int
    inner: int
    activation: str
    table_size: int
    types: int
    positions: int
    first: int
    norm_eps: float
    narrow: bool = False

    @property
    def max_length(self) -> int:
        """Longest canvas."""
        return self.positions - self.first

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> BertConfig:
        """From the parsed config.json."""
        family = str(config["model_type"])
        fields = Fields(config, family)
        fields.only(SUPPORTED)
        albert = family == "albert"
        width, heads, _, _ = fields.heads("hidden_size", "num_attention_heads", "num_attention_heads")
        layers = fields.size("num_hidden_layers", most=1000)
        groups = fields.size("num_hidden_groups", 1, most=layers) if albert else layers
        uses = [int(number / (layers / groups)) for number in range(layers)]
        first = fields.size("pad_token_id", 1, least=0) + 1 if family == "roberta" else 0
        return cls(
            width=width,
            embedded=fields.size("embedding_size", 128) if albert else width,
            groups=groups,
            group_size=fields.size("inner_group_num", 1, most=1000) if albert else 1,
            repeats=tuple(uses.count(group) for group in range(groups)),
            heads=heads,
            inner=fields.size("intermediate_size"),
            activation=activation(config, "hidden_act"),
            table_size=fields.size("vocab_size"),
            types=fields.size("type_vocab_size", 2),
            positions=fields.size("max_position_embeddings", least=first + STEADY_ROWS),
            first=first,
            norm_eps=fields.number("layer_norm_eps", 1e-12),
            narrow=albert,
        )


def activation(config: Mapping[str, Any], field: str) -> str:
    """The name of a supported activation."""
    name = config.get(field) or "gelu"
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise TacgError(f"config.json: `{field}` must be one of {', '.join(ACTIVATIONS)}, got {short(name)}.")
    return name


class MaskedLM(Network):
    """Common to masked language models: the output table is the embedding table, and there is a bias."""

    word: nn.Embedding
    bias: nn.Parameter | None

    @property
    def table(self) -> Tensor:
        """The output table [V, D]."""
        return self.word.weight

    def head(self, hidden: Tensor) -> Tensor:
        """[P, D] -> [P, V]."""
        return steady_linear(hidden, self.table, self.bias)


class BertLayer(nn.Module):
    """Attention and feed-forward, each with its norm after the residual sum."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width, inner = config.width, config.inner
        self.heads, self.activation = config.heads, ACTIVATIONS[config.activation]
        self.query, self.key, self.value, self.mixed = (Linear(width, width) for _ in range(4))
        self.mixed_norm = nn.LayerNorm(width, config.norm_eps)
        self.inner, self.outer = Linear(width, inner), Linear(inner, width)
        self.outer_norm = nn.LayerNorm(width, config.norm_eps)

    def forward(self, layer: int, x: Tensor, rows: PackedRows) -> Tensor:
        """[N, D] -> [N, D]."""
        q, k, v = (proj(x).unflatten(-1, (self.heads, -1)) for proj in (self.query, self.key, self.value))
        x = self.mixed_norm(self.mixed(rows.attend(layer, q, k, v)) + x)
        made: Tensor = self.outer_norm(self.outer(self.activation(self.inner(x))) + x)
        return made


class Bert(MaskedLM):
    """The network of all three families."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.table_size, config.embedded)
        self.position = nn.Embedding(config.positions, config.embedded)
        self.token_type = nn.Embedding(config.types, config.embedded)
        self.embedding_norm = nn.LayerNorm(config.embedded, config.norm_eps)
        self.widen = Linear(config.embedded, config.width) if config.narrow else nn.Identity()
        self.groups = nn.ModuleList(
            nn.ModuleList(BertLayer(config) for _ in range(config.group_size)) for _ in range(config.groups)
        )
        self.transform = Linear(config.width, config.embedded)
        self.transform_norm = nn.LayerNorm(config.embedded, config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.table_size))

    def placed(self, name: str) -> tuple[str, int | None] | None:
        """Where a tensor of the checkpoint goes. None: it is not used."""
        if UNUSED.search(name):
            return None
        for old, new in NAMES:
            name = re.sub(old, new, name)
        return name, None

    def hidden(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """Hidden states [P, D] at `select`, after the transform."""
        tokens, spans = steady_rows(tokens, spans)
        groups = list(zip(self.groups.children(), self.config.repeats, strict=True))
        depth = sum(repeats * sum(1 for _ in group.children()) for group, repeats in groups)
        table = self.word.weight
        rows = packed_rows(spans, 0, 1.0, device=table.device, dtype=table.dtype, layers=depth)
        embedded = self.word(tokens) + self.token_type.weight[0] + self.position(rows.position + self.config.first)
        x = self.widen(self.embedding_norm(embedded))
        number = 0
        for group, repeats in groups:
            for _ in range(repeats):
                for layer in group.children():
                    x = layer(number, x, rows)
                    number += 1
        x = steady_linear(x[select], self.transform.weight, self.transform.bias)
        made: Tensor = self.transform_norm(ACTIVATIONS[self.config.activation](x))
        return made
