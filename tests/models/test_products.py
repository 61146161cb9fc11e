"""Products in types that a CPU has no instructions for."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tacg.models import products

KINDS = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_by_way_of_float32_a_product_is_rounded_once(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes out is the exact product, rounded to the type, but for the order of sums in float32."""
    monkeypatch.setattr(products, "WIDENED", frozenset(KINDS))
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*size, generator=generator).to(kind) for size in ((40, 96), (64, 96), (64,)))
    made = products.linear(x, weight, bias)
    exact = F.linear(x.double(), weight.double(), bias.double())
    assert made.dtype == kind
    assert float((made == exact.to(kind)).float().mean()) > 0.99
    torch.testing.assert_close(made, exact.to(kind), rtol=torch.finfo(kind).eps, atol=1e-6)

    q, k, v = (torch.randn(2, 3, 20, 16, generator=generator).to(kind) for _ in range(3))
    mixed = products.attention(q, k, v, None, grouped=False)
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert mixed.dtype == kind
    torch.testing.assert_close(mixed, exact.to(kind), rtol=2 * torch.finfo(kind).eps, atol=1e-3)


def test_float32_and_types_with_instructions_go_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "WIDENED", frozenset({torch.float16}))
    assert not products.is_widened(torch.zeros(1))
    assert not products.is_widened(torch.zeros(1, dtype=torch.bfloat16))
    assert products.is_widened(torch.zeros(1, dtype=torch.float16))
    assert products.is_good_at(torch.device("cpu"), torch.float32)
    assert {torch.float16} <= {kind for kind in KINDS if not products.is_good_at(torch.device("cpu"), kind)}
