"""The scheduler in diffusers' real `LLaDA2Pipeline`, beside our engine, on a small random LLaDA2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

import tacg
from tacg.errors import LogitsError, TacgError
from tacg.integrations.settings import beyond_block
from tacg.models.tiny import write_checkpoint
from tacg.policies import get_policy, policy_names

pytest.importorskip("diffusers", reason="needs diffusers")

from diffusers import BlockRefinementScheduler, LLaDA2Pipeline

from tacg.integrations import diffusers as ours
from tacg.integrations.diffusers import PipelineModel, TacgScheduler

if TYPE_CHECKING:
    from pathlib import Path

MASK, END = 1, 79  # a token that about half of the answers have
FIT = [name for name in policy_names() if beyond_block(get_policy(name)) is None]


class CountedModel(PipelineModel):
    calls = 0

    def forward(self, *args: Any, **named: Any) -> Any:
        self.calls += 1
        return super().forward(*args, **named)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> tacg.LLM:
    place = tmp_path_factory.mktemp("llada2")
    made = tacg.load(write_checkpoint(place, family="llada2", liveliness=14.0, num_hidden_layers=2))
    made.model.spec = replace(made.model.spec, eos_ids=(END,))  # the pipeline knows one id that ends an answer
    return made


def some_prompts(count: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 64, (count,), generator=generator).tolist()
    return [torch.randint(6, 100, (length,), generator=generator).tolist() for length in lengths]


def to_the_end(prompt: list[int], least: int = 12) -> int:
    """Positions up to the end of a block: the pipeline decodes whole blocks, and cuts."""
    return least + -(len(prompt) + least) % 32


def run(
    llm: tacg.LLM, prompts: list[list[int]], settings: dict[str, Any] | None = None, **call: Any
) -> tuple[list[list[int]], int]:
    """Answers of one call of the pipeline, and its forwards."""
    model = CountedModel(llm)
    pipe = LLaDA2Pipeline(model, TacgScheduler(settings=settings))
    pipe.set_progress_bar_config(disable=True)
    call = {"gen_length": to_the_end(prompts[0]), "mask_token_id": MASK, "eos_token_id": END} | call
    return pipe(input_ids=torch.tensor(prompts), output_type="seq", **call).sequences.tolist(), model.calls


def up_to_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(END) + 1] if END in tokens else tokens


def test_fifty_prompts_take_the_tokens_and_steps_of_our_engine(llm: tacg.LLM) -> None:
    knobs = {"threshold": 0.6, "tau_floor": 0.3}
    ended = 0
    for prompt in some_prompts(50):
        (theirs,), forwards = run(llm, [prompt], knobs)
        alone = llm.generate(prompt, "tacg", gen_length=to_the_end(prompt), **knobs)
        assert up_to_end(theirs) == up_to_end(list(alone.tokens))
        assert forwards == alone.steps
        ended += END in theirs
    assert 5 < ended < 50, "some answers end early, some do not"


@pytest.mark.parametrize("policy", FIT)
def test_every_policy_that_fits_a_block(llm: tacg.LLM, policy: str) -> None:
    for prompt in some_prompts(2, seed=3):
        (theirs,), forwards = run(llm, [prompt], {"policy": policy})
        alone = llm.generate(prompt, policy, gen_length=to_the_end(prompt))
        assert (up_to_end(theirs), forwards) == (up_to_end(list(alone.tokens)), alone.steps)


def test_rows_of_a_batch_are_alone_and_wait_for_nobody(llm: tacg.LLM) -> None:
    """A row that has ended keeps its masks, so its blocks never fill; this must not affect the other rows."""
    prompts = [prompt[:9] for prompt in some_prompts(12, seed=1) if len(prompt) >= 9]
    together, forwards = run(llm, prompts, gen_length=55)
    alone = [run(llm, [prompt], gen_length=55) for prompt in prompts]
    assert [up_to_end(row) for row in together] == [up_to_end(rows[0]) for rows, _ in alone]
    assert forwards >= max(each for _, each in alone)
    assert len({END in row for row in together}) == 2


def test_the_steps_of_a_block_are_those_of_the_pipeline(llm: tacg.LLM) -> None:
    (prompt,) = some_prompts(1)
    slow = {"threshold": 1.0, "k_extra": 0}
    answer, forwards = run(llm, [prompt], slow, num_inference_steps=4, eos_early_stop=False)
    assert MASK not in answer[0]
    blocks = (len(prompt) + to_the_end(prompt)) // 32 - len(prompt) // 32
    assert forwards == 4 * blocks
    assert run(llm, [prompt], slow | {"steps": 2}, eos_early_stop=False)[1] == 2 * blocks


def test_samples_follow_from_the_generator(llm: tacg.LLM) -> None:
    prompts = some_prompts(1) * 2
    one, again, other = (
        run(llm, prompts, temperature=2.0, generator=torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2)
    )
    assert one == again != other
    assert one[0] != one[1], "rows have numbers of their own"
    greedy = run(llm, prompts[:1])[0]
    assert run(llm, prompts[:1], temperature=2.0, sampling_method="greedy")[0] == greedy


def test_a_scheduler_is_kept_and_changed_as_any_other(tmp_path: Path) -> None:
    made = TacgScheduler.from_config(BlockRefinementScheduler(block_length=16).config, settings={"base": "klass"})
    made.save_pretrained(tmp_path)
    again = TacgScheduler.from_pretrained(tmp_path)
    assert again.policy == made.policy == get_policy("tacg+klass")
    assert again.config.block_length == 16


def one_step(made: Any, logits: Tensor, sample: Tensor, **named: Any) -> Any:
    return made.step(logits, 0, sample, mask_token_id=MASK, **named)


def test_mistakes_are_told(llm: tacg.LLM) -> None:
    made, logits, sample = TacgScheduler(), torch.randn(1, 8, 9), torch.full((1, 8), MASK)
    with pytest.raises(TacgError, match="Did you mean 'threshold'"):
        TacgScheduler(settings={"treshold": 0.8})
    with pytest.raises(TacgError, match="`joint` reads committed tokens again"):
        TacgScheduler(settings={"policy": "joint"})
    for name, value in {"threshold": 0.8, "editing_threshold": 0.9, "minimal_topk": 2, "top_p": 0.9}.items():
        with pytest.raises(TacgError, match=f"`{name}` is BlockRefinementScheduler's"):
            one_step(made, logits, sample, **{name: value})
    with pytest.raises(TacgError, match="Did you mean 'temperature'"):
        one_step(made, logits, sample, temprature=1.0)
    with pytest.raises(TacgError, match="needs `mask_token_id`"):
        made.step(logits, 0, sample)
    with pytest.raises(LogitsError, match="row 0"):
        one_step(made, logits * torch.nan, sample)
    with pytest.raises(TacgError, match="must not be padded"):
        run(llm, [[7, 8, 9]], attention_mask=torch.tensor([[0, 1, 1]]))


def test_nothing_that_is_handed_over_is_changed() -> None:
    made, logits, sample = TacgScheduler(settings={"step_map": True}), torch.randn(2, 8, 9), torch.full((2, 8), MASK)
    before = logits.clone()
    told = one_step(made, logits, sample, prompt_mask=torch.arange(8) < 3)
    assert torch.equal(logits, before)
    assert bool((sample == MASK).all())
    assert not told.transfer_index[:, :3].any()
    assert bool((told.prev_sample[told.transfer_index] != MASK).all())
    assert [len(row) for row in made.commits] == told.transfer_index.sum(dim=1).tolist()


@dataclass
class ComingOutput:
    """As in diffusers #14741, where discrete schedulers share one output."""

    prev_sample: Tensor
    pred_original_sample: Tensor
    sampled_probs: Tensor
    pred_logits: Tensor
    committed_mask: Tensor
    edited_mask: Tensor


def test_the_coming_contract_of_discrete_schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask's id from the config, timesteps from 1 down, `set_timesteps` for each block, and a shared output."""
    monkeypatch.setattr(ours, "OUTPUT", ComingOutput)
    made = TacgScheduler(mask_token_id=MASK, settings={"threshold": 0.3})
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        made.set_timesteps(4)
        sample = torch.full((2, 8), MASK)
        for step in range(4):
            logits = 3 * torch.randn(2, 8, 9, generator=generator)
            told = made.step(logits, torch.tensor(1.0 - step / 4), sample, generator=generator)
            assert isinstance(told, ComingOutput)
            masked = sample == MASK
            drawn = told.pred_logits.softmax(dim=-1).gather(2, told.pred_original_sample[..., None]).squeeze(2)
            assert torch.allclose(told.sampled_probs[masked], drawn[masked], atol=1e-6)
            assert torch.equal(told.prev_sample != sample, told.committed_mask)
            sample = told.prev_sample
        assert not (sample == MASK).any()
    assert len(made.step(logits, 1.0, sample, return_dict=False)) == 6
