"""The pieces of a layer as a GPU would get them, traced without a GPU: no break, experts and routing included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tacg.models.layers import LayerSteps
from tacg.models.loading import FAMILIES
from tacg.models.products import SideBySide
from tacg.models.rows import Turns
from tacg.models.tiny import SHAPES

TOKENS = 48


def last_layer(family: str) -> LayerSteps:
    """In bfloat16 on a simulated GPU, with tables side by side."""
    config = SHAPES[family] | {"vocab_size": 128}
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = FAMILIES[config["model_type"]](config).requires_grad_(False)
    finally:
        torch.set_default_dtype(torch.float32)
    for module in model.modules():
        if isinstance(module, SideBySide):
            for name, place in module.make_room(torch.bfloat16, torch.device("cuda")).items():
                owner, _, leaf = name.rpartition(".")
                setattr(module.get_submodule(owner), leaf, torch.nn.Parameter(place, requires_grad=False))
            module.settle()
    return [module for module in model.modules() if isinstance(module, LayerSteps)][-1]


@pytest.mark.parametrize("family", ["llada", "llada2"])
def test_each_piece_is_one_graph(family: str) -> None:
    graphs: list[Any] = []

    def kept(graph: Any, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with FakeTensorMode(), torch.no_grad():
        layer = last_layer(family)
        given: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
        angles = [torch.empty(TOKENS, 1, layer.head_dim, **given) for _ in range(2)]
        turns = Turns(*angles, torch.empty(layer.head_dim, dtype=torch.int64, device="cuda"))
        x = torch.empty(TOKENS, 64, **given)
        heads = torch.compile(layer.before, backend=kept, fullgraph=True)(x, turns)
        assert heads.pair.shape == (TOKENS, heads.keys.shape[1] * 2, layer.head_dim)
        made = torch.compile(layer.after, backend=kept, fullgraph=True)(x, heads.queries.flatten(1))
    torch._dynamo.reset()
    assert made.shape == x.shape
    assert len(graphs) == 2
