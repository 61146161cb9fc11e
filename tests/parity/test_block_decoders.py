"""Block-causal models as their authors decode them: plain loops over one row with `transformers`' networks, no cache.

Fast-dLLM v2: a block of 32 begins with the token that the last position before it predicts, whatever its probability.
The rest is filled in sub-blocks of 8, each until it is full; the whole block is computed all the time. Tiny-A2D's
bd3lm: the prompt is filled up on the left to whole blocks, with padding that nobody sees and that has no position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import tacg
from tacg.models.matrix import KNOWN
from tacg.models.tiny import write_checkpoint
from tests.parity.test_families import UNTIED, fast_dllm, qwen3

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

BLOCK, SUB, MASK, PAD = 32, 8, 1, 0
Commits = list[tuple[int, int, int]]  # step, position of the answer, token
PROMPTS = [
    [7 + (5 * row + 3 * place) % 60 for place in range(length)] for row, length in enumerate((32, 40, 7, 63, 64))
]


def block_mask(valid: Tensor) -> Tensor:
    """float [1, 1, T, T]: a column sees itself and the `valid` (bool [T]) columns of its block and before."""
    block = torch.arange(len(valid)) // BLOCK
    sees = (block[None, :] <= block[:, None]) & valid[None, :] | torch.eye(len(valid), dtype=torch.bool)
    return torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)[None, None]


@torch.no_grad()
def posterior(network: Any, canvas: list[int], unwritable: tuple[int, ...], padding: int = 0) -> Tensor:
    """float64 [T, V] as the network gives it, not shifted, for a canvas whose first columns may be padding."""
    valid = torch.arange(len(canvas)) >= padding
    positions = (torch.arange(len(canvas)) - padding).clamp(min=0)
    raw = network(
        input_ids=torch.tensor([canvas]), attention_mask=block_mask(valid), position_ids=positions[None]
    ).logits[0].double()  # fmt: skip
    raw[:, list(unwritable)] = -torch.inf
    return raw.softmax(dim=1)


def fast_dllm_v2(network: Any, prompt: list[int], length: int, threshold: float, never: tuple[int, ...]) -> Commits:
    """Its authors' loop; the forward that ends a block there is the one that gives the next block's first token."""
    canvas, commits, step = list(prompt), Commits(), 0
    while len(canvas) < len(prompt) + length:
        if len(canvas) % BLOCK == 0:
            step += 1
            canvas.append(int(posterior(network, canvas, never)[-1].argmax()))
            commits.append((step, len(canvas) - 1 - len(prompt), canvas[-1]))
        first = len(canvas) // BLOCK * BLOCK
        canvas += [MASK] * (first + BLOCK - len(canvas))
        for start in range(first, first + BLOCK, SUB):
            while masks := [place for place in range(start, start + SUB) if canvas[place] == MASK]:
                step += 1
                sure, token = posterior(network, canvas, never)[[place - 1 for place in masks]].max(dim=1)
                ready = sure > threshold
                ready[sure.argmax()] = True
                for place, each in zip(torch.tensor(masks)[ready].tolist(), token[ready].tolist(), strict=True):
                    canvas[place] = each
                    commits.append((step, place - len(prompt), each))
    return commits


def bd3lm(network: Any, prompt: list[int], length: int, never: tuple[int, ...]) -> Commits:
    """dllm's loop with one token per step, the surest."""
    padding, commits = -len(prompt) % BLOCK, Commits()
    canvas = [PAD] * padding + prompt
    while len(canvas) < padding + len(prompt) + length:
        first = len(canvas)
        canvas += [MASK] * BLOCK
        for _ in range(BLOCK):
            masks = [place for place in range(first, first + BLOCK) if canvas[place] == MASK]
            sure, token = posterior(network, canvas, never, padding)[masks].max(dim=1)
            best = int(sure.argmax())
            canvas[masks[best]] = int(token[best])
            commits.append((len(commits) + 1, masks[best] - padding - len(prompt), int(token[best])))
    return commits


def test_the_matrix_of_models_says_what_is_decoded_here() -> None:
    assert {kind for kind, known in KNOWN.items() if known.decoded} == {"Fast_dLLM_Qwen", "a2d-qwen3"}


def commits_of(output: tacg.Output) -> Commits:
    return sorted((each.step, each.position, each.token) for each in output.commits)


@pytest.mark.parametrize("cache", ["auto", "none"])
def test_fast_dllm_v2_decodes_as_its_authors_do(tmp_path: Path, cache: str) -> None:
    directory = write_checkpoint(tmp_path, family="fast-dllm-v2", liveliness=6.0, **UNTIED)
    llm = tacg.load(directory)
    spec, network = llm.model.spec, fast_dllm(directory, llm.model.config)  # type: ignore[attr-defined]
    # The answer ends where a block ends, as theirs does.
    lengths = [2 * BLOCK - len(prompt) % BLOCK for prompt in PROMPTS]
    settings: dict[str, Any] = {"threshold": 0.6, "strict": True, "early_stop": False, "cache": cache}
    parallel = 0
    for length in {*lengths}:
        asked = [prompt for prompt, own in zip(PROMPTS, lengths, strict=True) if own == length]
        outputs = llm.generate(asked, "confidence", gen_length=length, **settings)
        for prompt, output in zip(asked, outputs, strict=True):
            expected = fast_dllm_v2(network, prompt, length, 0.6, spec.unwritable)
            assert commits_of(output) == sorted(expected)
            assert output.forwards == expected[-1][0]
            parallel += len(expected) - expected[-1][0]
            edge = -len(prompt) % BLOCK  # the first token of a block comes alone
            (alone,) = [step for step, place, _ in expected if place == edge]
            assert [place for step, place, _ in commits_of(output) if step == alone] == [edge]
    assert parallel > 20, "steps that write more than one token"


def test_bd3lm_answers_begin_a_block(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "bd3lm", family="a2d", liveliness=6.0, **UNTIED)
    llm = tacg.load(directory)
    spec, network = llm.model.spec, qwen3(directory, llm.model.config)  # type: ignore[attr-defined]
    assert spec.pads_prompt
    asked = PROMPTS[:3]
    expected = [sorted(bd3lm(network, prompt, 2 * BLOCK, spec.unwritable)) for prompt in asked]
    for cache in ("auto", "none"):
        outputs = llm.generate(asked, "schedule", gen_length=2 * BLOCK, early_stop=False, cache=cache)
        assert [commits_of(output) for output in outputs] == expected
