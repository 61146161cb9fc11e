"""Caches: `block` is exact, `prefix` and `dual` equal the full forward where they must, and batches change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import tacg
from tacg.engine.events import Finished
from tacg.engine.loop import Engine
from tacg.engine.request import Request, resolve
from tacg.errors import TacgError
from tacg.models.base import Span, whole
from tacg.models.tiny import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

FULL = ("llada", "dream", "llada-moe")
# Of the last two one reads a position before its block, and one has a grid that ends with the prompt.
BY_BLOCKS = {"llada2": 32, "sdar-moe": 4, "fast-dllm-v2": 32, "a2d": 32}
PROMPTS = [
    [7 + (3 * row + place) % 60 for place in range(length)]
    for row, length in enumerate((5, 40, 33, 64, 17, 31, 90, 12))
]
SETTINGS: dict[str, Any] = {"gen_length": 80, "block_length": 32, "early_stop": False, "threshold": 0.6}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tacg.LLM]:
    made = {}
    for family in (*FULL, *BY_BLOCKS):
        directory, shape = tmp_path_factory.mktemp(family), {"block_size": 32} if family == "a2d" else {}
        made[family] = tacg.load(write_checkpoint(directory, family=family, seed=2, liveliness=4.0, **shape))
    return made


class Spy:
    """Passes calls on and keeps what was computed and what came out."""

    def __init__(self, model: Any) -> None:
        self.model, self.spec, self.device = model, model.spec, model.device
        self.calls: list[tuple[list[Span], Tensor]] = []

    def __call__(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens, spans, select)
        self.calls.append((list(spans), logits.clone()))
        return logits


def decode(llm: tacg.LLM, prompt: list[int], cache: str, policy: str = "tacg") -> tuple[tacg.Output, Spy]:
    spy = Spy(llm.model)
    return tacg.LLM(spy, llm.tokenizer).generate(prompt, policy, cache=cache, **SETTINGS | {"block_length": None}), spy


@pytest.mark.parametrize("family", BY_BLOCKS)
@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_the_block_cache_is_exact(models: dict[str, tacg.LLM], prompt: list[int], family: str) -> None:
    plain, slow = decode(models[family], prompt, "none")
    cached, fast = decode(models[family], prompt, "block")
    assert cached.tokens == plain.tokens
    assert [c.step for c in cached.commits] == [c.step for c in plain.commits]
    for (_, ours), (_, theirs) in zip(fast.calls, slow.calls, strict=True):
        assert float((ours - theirs).abs().max()) <= 2e-6 * max(10.0, float(theirs.abs().max()))
    most = 2 * BY_BLOCKS[family] + models[family].model.spec.logit_shift
    assert all(len(span) <= most for spans, _ in fast.calls[1:] for span in spans), "never more than two blocks again"
    computed = sum(len(span) for spans, _ in fast.calls for span in spans)
    assert computed < sum(len(span) for spans, _ in slow.calls for span in spans)


@pytest.mark.parametrize("mode", ["prefix", "dual"])
@pytest.mark.parametrize("family", FULL)
def test_a_blocks_first_step_is_the_full_forward(models: dict[str, tacg.LLM], family: str, mode: str) -> None:
    """And the steps after it compute only the block (and what follows it), starting early where logits are shifted."""
    llm, prompt = models[family], PROMPTS[1]
    output, spy = decode(llm, prompt, mode)
    back, length = llm.model.spec.logit_shift, len(prompt) + 80
    firsts = {min(c.step for c in output.commits if c.position // 32 == block) for block in range(3)}
    canvas = torch.tensor([prompt + [llm.model.spec.mask_id] * 80])
    for step, ((span,), logits) in enumerate(spy.calls, start=1):
        block = max(0, sum(first <= step for first in sorted(firsts)) - 1)
        start, stop = len(prompt) + 32 * block, min(len(prompt) + 32 * (block + 1), length)
        if step in firsts:
            assert (span.start, span.stop) == (0, length)
            masked = canvas[0, start:stop] == llm.model.spec.mask_id
            full = llm.logits(canvas)[0, start:stop][masked]
            assert float((full - logits).abs().max()) <= 1e-5
        else:
            assert (span.start, span.stop) == (start - back, length if mode == "prefix" else stop)
        for commit in output.commits:
            if commit.step == step:
                canvas[0, len(prompt) + commit.position] = commit.token
    assert output.forwards == output.steps == len(spy.calls)


@pytest.mark.parametrize(("family", "mode"), [("llada2", "block"), *((f, m) for f in FULL for m in ("prefix", "dual"))])
def test_rows_in_a_batch_decode_as_alone(models: dict[str, tacg.LLM], family: str, mode: str) -> None:
    llm = models[family]
    together = llm.generate(PROMPTS, "tacg", cache=mode, **SETTINGS)
    for prompt, output in zip(PROMPTS, together, strict=True):
        alone = llm.generate(prompt, "tacg", cache=mode, **SETTINGS)
        assert (output.tokens, output.steps) == (alone.tokens, alone.steps)


def test_modes_that_make_no_sense_are_refused(models: dict[str, tacg.LLM]) -> None:
    for family, settings, words in (
        ("llada", {"cache": "block"}, "sees all blocks"),
        ("llada2", {"cache": "dual"}, "block-causal"),
        ("llada", {"cache": "dual", "observe": "sequence"}, "later blocks are not computed"),
        ("llada2", {"observe": "sequence"}, "later blocks are not computed"),
        ("llada2", {"block_length": 24}, "must be 32 or a divisor.*got 24. The default is 32"),
        ("fast-dllm-v2", {"block_length": 64}, "must be 32 or a divisor.*The default is 8"),
    ):
        with pytest.raises(tacg.TacgError, match=words):
            models[family].generate([7, 8], gen_length=8, **({"block_length": 32} | settings))


def test_the_last_block_is_whole_for_a_model_that_knows_only_whole_ones(models: dict[str, tacg.LLM]) -> None:
    """If the answer ends within a block, the rest of that block is masks, as in training."""
    llm, prompt = models["llada2"], PROMPTS[2][:32]
    spies = []
    for length in (8, 32):
        spy = Spy(llm.model)
        tacg.LLM(spy, llm.tokenizer).generate(prompt, "tacg", **SETTINGS | {"gen_length": length})
        spies.append(spy)
    (short,), (long,) = (spy.calls[0][0] for spy in spies)
    assert short.stop == long.stop == 64
    assert torch.equal(spies[0].calls[0][1], spies[1].calls[0][1][:8])


@pytest.mark.parametrize("before", [16, 31, 32])
def test_a_budget_holds_on_a_grid_of_blocks(models: dict[str, tacg.LLM], before: int) -> None:
    prompt = [7 + place % 60 for place in range(before)]
    ask = {"gen_length": 64, "early_stop": False}
    least = 2 if before == 32 else 3  # blocks that the answer touches
    for steps in (least, 8):
        assert models["llada2"].generate(prompt, "schedule", steps=steps, **ask).steps <= steps
    if least == 3:
        with pytest.raises(TacgError, match="number of blocks, 3, got"):
            models["llada2"].generate(prompt, "schedule", steps=2, **ask)


def test_a_forward_that_fails_can_be_repeated(models: dict[str, tacg.LLM]) -> None:
    class Once(Spy):
        def __call__(self, *args: Any) -> Tensor:
            if not self.calls:
                self.calls.append(([], torch.zeros(0)))
                raise MemoryError
            return super().__call__(*args)

    llm = models["llada2"]
    request = Request(tuple(PROMPTS[1]), *resolve("tacg", SETTINGS | {"gen_length": 16}))
    (expected,) = Engine(llm.model).generate([request])
    engine = Engine(Once(llm.model))
    engine.submit(request)
    with pytest.raises(MemoryError):
        engine.step()
    done = []
    while engine.busy:
        done += [event.output for event in engine.step() if isinstance(event, Finished)]
    assert done == [expected]


@pytest.mark.parametrize("family", ["llada2", "llada-moe"])
def test_experts_do_not_feel_the_neighbours(tmp_path: Path, family: str) -> None:
    llm = tacg.load(write_checkpoint(tmp_path, family=family, seed=2, liveliness=4.0))
    one, other = ([7 + (step * place) % 60 for place in range(size)] for step, size in ((3, 40), (5, 50)))
    alone = llm.model(torch.tensor(one), whole([40]), torch.arange(40))
    among = llm.model(torch.tensor(one + other), whole([40, 50]), torch.arange(40))
    assert torch.equal(alone, among)
