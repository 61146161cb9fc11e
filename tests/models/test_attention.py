"""What a model shows of its attention: against scores computed eagerly, in every family and with every cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import tacg
from tacg.cache import Cache
from tacg.models.base import AttentionMap, Span
from tacg.models.rows import PackedRows
from tacg.models.tiny import random_model, write_checkpoint
from tests.worlds import ReactiveDenoiser

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

FAMILIES = ("llada", "dream", "llada2", "llada-moe", "qwen2")
CACHES = [("llada", "prefix"), ("llada", "dual"), ("dream", "dual"), ("llada2", "block")]


def eager(q: Tensor, k: Tensor, block: int | None) -> Tensor:
    """float [T, T], averaged over heads: one head and one query at a time."""
    length, heads = q.shape[:2]
    total = torch.zeros(length, length, dtype=torch.float64)
    for head in range(heads):
        keys = k[:, head * k.shape[1] // heads].double()
        for query in range(length):
            last = length if block is None else min(length, (query // block + 1) * block)
            score = keys[:last] @ q[query, head].double() / q.shape[2] ** 0.5
            total[query, :last] += score.exp() / score.exp().sum()
    return total / heads


@pytest.mark.parametrize("share", [1.0, 0.5, 0.01])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_it_is_the_eager_computation(family: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a batch: to the last bit as alone."""
    model = random_model(family, **{"n_layers" if family == "llada" else "num_hidden_layers": 4})
    caught: list[tuple[Tensor, Tensor]] = []
    plain = PackedRows.attend

    def attend(rows: PackedRows, layer: int, q: Tensor, k: Tensor, v: Tensor, pair: Tensor | None) -> Tensor:
        caught.append((q[:50], k[:50]))
        return plain(rows, layer, q, k, v, pair)

    tokens = torch.randint(2, 100, (50,), generator=torch.Generator().manual_seed(3))
    alone = AttentionMap(20, 33, share)
    monkeypatch.setattr(PackedRows, "attend", attend)
    model(tokens, [Span(0, 50, 50, attention=alone)], torch.arange(3))
    layers = caught[-max(1, round(4 * share)) :]
    block = model.spec.causal_block
    expected = torch.stack([eager(q, k, block)[20:33, 20:33] for q, k in layers]).mean(dim=0)
    assert float((alone.mean() - expected).abs().max()) < 1e-6
    among, other = AttentionMap(20, 33, share), AttentionMap(0, 40, 1.0)
    spans = [Span(0, 50, 50, attention=among), Span(0, 50, 50), Span(0, 60, 60, attention=other)]
    model(torch.cat([tokens, tokens.flip(0), tokens, tokens[:10]]), spans, torch.arange(3))
    assert torch.equal(among.mean(), alone.mean())
    assert other.mean().shape == (40, 40)


@pytest.mark.parametrize(("family", "mode"), CACHES)
@torch.no_grad()
def test_with_a_cache_it_is_that_of_the_whole_row(family: str, mode: str) -> None:
    """Keys come from the cache, which holds just what a full forward would compute."""
    model = random_model(family)
    tokens = torch.randint(2, 100, (96,), generator=torch.Generator().manual_seed(4))
    whole, part, cache = AttentionMap(33, 64, 1.0), AttentionMap(33, 64, 1.0), Cache(96)
    stop = 64 if family == "llada2" else 96
    model(tokens[:stop], [Span(0, stop, stop, cache, attention=whole)], torch.arange(3))
    start, end, reach = {"prefix": (33, 96, 96), "dual": (32, 64, 96), "block": (32, 64, 64)}[mode]
    model(tokens[start:end], [Span(start, end, reach, cache, attention=part)], torch.arange(3))
    assert float((whole.mean() - part.mean()).abs().max()) < 1e-6


@pytest.mark.parametrize("family", FAMILIES[:4])
@pytest.mark.parametrize("policy", ["attention", "dapd", "tacg+attention"])
def test_rows_in_a_batch_decode_as_alone(tmp_path: Path, family: str, policy: str) -> None:
    llm = tacg.load(write_checkpoint(tmp_path, family=family, seed=2, liveliness=4.0))
    prompts = [[7 + (3 * row + place) % 60 for place in range(length)] for row, length in enumerate((5, 40, 33))]
    caches = ["auto"] if family == "llada2" else ["none", "prefix", "dual"]
    for cache in caches:
        settings: dict[str, Any] = {"gen_length": 40, "block_length": 32, "early_stop": False, "cache": cache}
        together = llm.generate(prompts, policy, **settings)
        assert together == [llm.generate(prompt, policy, **settings) for prompt in prompts]
        assert min(output.steps for output in together) < 40 or "dapd" not in policy, "several at once"


def test_a_model_that_shows_none_is_refused() -> None:
    class Blind(ReactiveDenoiser):
        shows_attention = False

    request = tacg.Request((3,), tacg.get_policy("attention"), tacg.Decode(gen_length=4))
    with pytest.raises(tacg.TacgError, match="`attention` reads attention, which 'reactive' does not expose"):
        tacg.Engine(Blind()).submit(request)


def test_a_model_that_promises_too_much_is_told() -> None:
    class Silent(ReactiveDenoiser):
        def __call__(self, tokens: Tensor, spans: Any, select: Tensor) -> Tensor:
            return super().__call__(tokens, [Span(0, len(span), len(span)) for span in spans], select)

    request = tacg.Request((3,), tacg.get_policy("attention"), tacg.Decode(gen_length=4))
    with pytest.raises(tacg.TacgError, match="it added nothing"):
        tacg.Engine(Silent()).generate([request])
