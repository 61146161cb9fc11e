"""Gaps and shadows against `transformers`' Llama with explicit position ids and a 4-D mask; and, over that network, the
two decoders that need them as plain loops over one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import tacg
from tacg.engine.loop import Engine
from tacg.engine.request import Request, resolve
from tacg.models.base import Span
from tacg.models.tiny import write_checkpoint
from tests.parity.test_llada import oracle

Posterior = NDArray[np.float64]
Dense = Callable[[list[int], list[int], NDArray[np.bool_] | None], Posterior]
Commits = list[tuple[int, int, int, str]]  # step, position of the answer, token, reason
PROMPTS = [tuple(7 + (3 * row + place) % 60 for place in range(length)) for row, length in enumerate((5, 23, 12, 17))]
MASK = 1


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[tacg.LLM, Dense]:
    """Ours, and theirs as a function of tokens, positions and who sees whom: posteriors without the mask."""
    directory = write_checkpoint(tmp_path_factory.mktemp("spans"), seed=2, liveliness=4.0)
    llm = tacg.load(directory)
    assert llm.model.spec.mask_id == MASK
    network = oracle(directory, llm)

    @torch.no_grad()
    def dense(tokens: list[int], positions: list[int], sees: NDArray[np.bool_] | None = None) -> Posterior:
        more = {} if sees is None else {"attention_mask": torch.from_numpy(sees)[None, None]}
        out = network(input_ids=torch.tensor([tokens]), position_ids=torch.tensor([positions]), **more)
        logits = out.logits[0, :, : llm.model.spec.vocab_size].double().numpy()
        logits[:, list(llm.model.spec.unwritable)] = -np.inf
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    return llm, dense


def shadowed(positions: list[int], shadow: list[int]) -> NDArray[np.bool_]:
    """Who sees whom, rows that ask by columns that are seen."""
    size = len(positions) + len(shadow)
    sees = np.zeros((size, size), dtype=bool)
    for i in range(size):
        for j in range(size):
            if i < len(positions):
                sees[i, j] = j < len(positions)
            elif j < len(positions):
                sees[i, j] = positions[j] != shadow[i - len(positions)]
            else:
                sees[i, j] = True
    return sees


def plain_wino(
    dense: Dense, prompt: tuple[int, ...], length: int, block: int, *, threshold: float, keep: float
) -> tuple[list[int], Commits, int, Counter[str]]:
    """The answer, its commits, the positions that were computed, and what happened on the way."""
    canvas, start = [*prompt, *[MASK] * length], len(prompt)
    commits, computed, step, saw = Commits(), 0, 0, Counter[str]()
    for first in range(0, length, block):
        shadow = [start + place for place in range(first, min(first + block, length))]
        last = 30
        while masks := [place for place in shadow if canvas[place] == MASK]:
            step += 1
            places = list(range(len(canvas)))
            p = dense(canvas + [MASK] * len(shadow), places + shadow, shadowed(places, shadow))
            computed += len(canvas) + len(shadow)
            sure = {place: p[place].max() for place in masks}
            by_confidence = sorted(masks, key=lambda place: (-sure[place], place))
            drafts = [place for place in by_confidence if sure[place] > threshold]
            most = min(max(int(0.7 * len(masks)), 5), 20)
            saw["capped"] += len(drafts) > most
            drafts = drafts[:most]
            reason = "base" if drafts else "fallback"
            written = drafts or by_confidence[:1]
            again = {place: p[len(canvas) + i, canvas[place]] for i, place in enumerate(shadow) if place not in masks}
            doubted = sorted((place for place in again if again[place] < keep), key=lambda place: (again[place], place))
            saw["spared"] += len(written) == 1 and bool(doubted)
            saw["not all"] += len(written) > 1 and len(doubted) >= last
            saw["more than written"] += len(written) > 1 and min(len(doubted), last - 1) >= len(written)
            doubted = doubted[: last - 1] if len(written) > 1 else []
            last = len(written)
            told = {place: (int(p[place].argmax()), reason) for place in written}
            told |= dict.fromkeys(doubted, (MASK, "remask"))
            for place in sorted(told):
                canvas[place] = told[place][0]
                commits.append((step, place - start, *told[place]))
                saw[told[place][1]] += 1
    return canvas[start:], commits, computed, saw


def plain_streaming(
    dense: Dense, prompt: tuple[int, ...], length: int, block: int, *, threshold: float, alpha: float, suffix: int
) -> tuple[list[int], Commits, int, Counter[str]]:
    """As `plain_wino`. Without a cache: every step computes what is before the block anew."""
    canvas, start = [*prompt, *[MASK] * length], len(prompt)
    commits, computed, step, saw = Commits(), 0, 0, Counter[str]()
    for first in range(0, length, block):
        stop = min(start + first + block, len(canvas))
        behind = list(range(stop, len(canvas)))
        kept = behind if len(behind) <= suffix else [*behind[:suffix], behind[-1]]
        saw["pruned"] += len(kept) < len(behind)
        here, turn = list(range(start + first, stop)), 0
        while masks := [place for place in here if canvas[place] == MASK]:
            step += 1
            places = [*range(stop), *kept]
            p = dense([canvas[place] for place in places], places, None)
            computed += len(places)
            r = sum(canvas[place] == MASK for place in here + kept) / len(here + kept) if turn else 1.0
            bar = threshold * (1 - alpha * (1 - r))
            sure = {place: p[place].max() for place in masks}
            ready = [place for place in masks if sure[place] >= bar]
            saw["below the first bar"] += any(sure[place] < threshold for place in ready)
            reason = "base" if ready else "fallback"
            for place in ready or [max(masks, key=lambda place: (sure[place], -place))]:
                canvas[place] = int(p[place].argmax())
                commits.append((step, place - start, canvas[place], reason))
                saw[reason] += 1
            turn += 1
    return canvas[start:], commits, computed, saw


LOOPS: dict[str, Any] = {"wino": plain_wino, "streaming": plain_streaming}


@pytest.mark.parametrize(
    ("name", "settings", "met"),
    [
        ("wino", {"threshold": 0.3, "keep": 0.5}, ("base", "fallback", "remask", "spared")),
        ("wino", {"threshold": 0.1, "keep": 0.7}, ("base", "remask", "capped", "not all", "more than written")),
        (
            "streaming",
            {"threshold": 0.5, "alpha": 0.6, "suffix": 5},
            ("base", "fallback", "pruned", "below the first bar"),
        ),
        ("streaming", {"threshold": 0.4, "alpha": 0.3, "suffix": 0}, ("base", "fallback", "pruned")),
    ],
)
def test_rows_decode_as_the_plain_loops_do(
    models: tuple[tacg.LLM, Dense], name: str, settings: dict[str, float], met: tuple[str, ...]
) -> None:
    """Rows of unlike length and grid in one batch, a plain policy among them, against one row at a time."""
    llm, dense = models
    shapes = [(30, 12), (24, 24), (17, 5), (40, 16)]
    ours = [
        Request(
            prompt,
            *resolve(name, {"gen_length": length, "block_length": block, "early_stop": False, **settings}),
        )
        for prompt, (length, block) in zip(PROMPTS, shapes, strict=True)
    ]
    plain = Request(PROMPTS[0], *resolve("tacg", {"gen_length": 20}))
    *outputs, _ = Engine(llm.model, max_rows=4).generate([*ours, plain])
    saw = Counter[str]()
    for output, prompt, (length, block) in zip(outputs, PROMPTS, shapes, strict=True):
        tokens, commits, computed, happened = LOOPS[name](dense, prompt, length, block, **settings)
        assert [(each.step, each.position, each.token, each.reason) for each in output.commits] == commits
        assert (list(output.tokens), output.positions) == (tokens, computed)
        saw += happened
    assert all(saw[each] for each in met), saw


def logits_of(llm: tacg.LLM, tokens: list[int], span: Span, select: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return llm.model(torch.tensor(tokens), [span], torch.tensor(select))


@pytest.mark.parametrize(("gap", "shadow"), [((20, 31), (0, 0)), ((0, 0), (14, 22)), ((25, 31), (14, 22))])
def test_logits_equal_the_dense_ones(tmp_path: Path, gap: tuple[int, int], shadow: tuple[int, int]) -> None:
    directory = write_checkpoint(tmp_path, seed=2, liveliness=1.0)
    llm = tacg.load(directory)
    tokens = torch.randint(6, 60, (32,), generator=torch.Generator().manual_seed(5)).tolist()
    positions = [place for place in range(32) if not gap[0] <= place < gap[1]]
    twins = list(range(*shadow))
    given = [tokens[place] for place in positions] + [MASK] * len(twins)
    sees = torch.from_numpy(shadowed(positions, twins))[None, None]
    with torch.no_grad():
        theirs = oracle(directory, llm)(
            input_ids=torch.tensor([given]), position_ids=torch.tensor([positions + twins]), attention_mask=sees
        ).logits[0, :, : llm.model.spec.vocab_size]
    span = Span(0, 32, 32 - (gap[1] - gap[0]), None, gap, shadow)
    assert len(span) == len(given)
    ours = logits_of(llm, given, span, list(range(len(given))))
    assert float((ours - theirs).abs().max()) <= 1e-5
    if twins:  # what nobody sees changes nothing
        alone = logits_of(llm, given[: len(positions)], Span(0, 32, span.reach, None, gap), list(range(len(positions))))
        assert float((ours[: len(positions)] - alone).abs().max()) <= 1e-5
