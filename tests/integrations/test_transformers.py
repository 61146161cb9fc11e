"""`model.generate(..., custom_generate=tacg_generate)` against our own engine, on Llama made bidirectional."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tacg
from tacg.errors import TacgError
from tacg.integrations.transformers import DraftStreamer, Generated, tacg_generate
from tacg.models.tiny import write_checkpoint
from tests.parity.test_llada import oracle
from tests.revising import Reviser

PROMPTS = ["Once upon a time", "Hi", "2 + 3"]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[tacg.LLM, Any]:
    """Our model and transformers' with the same weights."""
    directory = write_checkpoint(tmp_path_factory.mktemp("twins"), seed=3)
    ours = tacg.load(directory)
    theirs: Any = oracle(directory, ours)
    theirs.config.mask_token_id = ours.model.spec.mask_id
    theirs.generation_config.eos_token_id = list(ours.model.spec.eos_ids)
    theirs.generation_config.pad_token_id = 2
    return ours, theirs


def left_padded(prompts: list[list[int]]) -> dict[str, torch.Tensor]:
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[2] * (longest - len(prompt)) + prompt for prompt in prompts])
    valid = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return {"input_ids": ids, "attention_mask": valid}


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("tacg", {"block_length": 16}),
        ("tacg+klass", {"block_length": 8, "k_extra": 1, "early_stop": False, "observe": "sequence"}),
        ("confidence", {"threshold": 0.5, "steps": 12}),
    ],
)
def test_tokens_are_those_of_our_engine(twins: tuple[tacg.LLM, Any], policy: str, settings: dict[str, Any]) -> None:
    ours, theirs = twins
    prompts = [ours.encode(text, chat=False) for text in PROMPTS]
    expected = ours.generate(prompts, policy, gen_length=24, **settings)
    out = theirs.generate(
        **left_padded(prompts), custom_generate=tacg_generate, max_new_tokens=24, policy=policy, settings=settings,
        return_dict_in_generate=True,
    )  # fmt: skip
    assert isinstance(out, Generated)
    width = max(len(prompt) for prompt in prompts)
    for row, output, mine in zip(out.sequences.tolist(), out.outputs, expected, strict=True):
        assert row[width : width + len(mine.tokens)] == list(mine.tokens)
        assert set(row[width + len(mine.tokens) :]) <= {2}, "padding after an early end"
        assert (output.steps, output.forwards) == (mine.steps, mine.forwards)
        assert [(c.position, c.token, c.step, c.reason) for c in output.commits] == [
            (c.position, c.token, c.step, c.reason) for c in mine.commits
        ]


def test_sampling_follows_the_generation_config(twins: tuple[tacg.LLM, Any]) -> None:
    ours, theirs = twins
    prompt = ours.encode("Hello", chat=False)
    ids = torch.tensor([prompt])
    ask = {"custom_generate": tacg_generate, "max_new_tokens": 16, "settings": {"seed": 5, "early_stop": False}}
    sampled = theirs.generate(ids, do_sample=True, temperature=2.0, **ask)
    expected = ours.generate(prompt, "tacg", gen_length=16, temperature=2.0, seed=5, early_stop=False)
    assert sampled[0, len(prompt) :].tolist() == list(expected.tokens)
    assert sampled.tolist() != theirs.generate(ids, **ask).tolist()


def test_several_samples_of_one_prompt_differ(twins: tuple[tacg.LLM, Any]) -> None:
    ours, theirs = twins
    ids = torch.tensor([ours.encode("Hello", chat=False)])
    rows = theirs.generate(
        ids, custom_generate=tacg_generate, max_new_tokens=16, do_sample=True, temperature=3.0, num_return_sequences=4,
        settings={"early_stop": False},
    ).tolist()  # fmt: skip
    assert len({tuple(row) for row in rows}) == 4


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"do_sample": True, "top_p": 0.1}, "TopPLogitsWarper"),
        ({"do_sample": True, "top_k": 3}, "TopKLogitsWarper"),
        ({"repetition_penalty": 1.5}, "RepetitionPenaltyLogitsProcessor"),
        ({"bad_words_ids": [[9]]}, "NoBadWordsLogitsProcessor"),
        ({"num_beams": 4}, "num_beams"),
    ],
)
def test_what_would_have_no_effect_is_refused(twins: tuple[tacg.LLM, Any], asked: dict[str, Any], named: str) -> None:
    with pytest.raises(TacgError, match=named):
        twins[1].generate(torch.tensor([[5, 6]]), custom_generate=tacg_generate, max_new_tokens=8, **asked)


def test_a_long_draft_is_cleared_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")

    class Letters:
        def decode(self, ids: list[int]) -> str:
            return "".join(chr(each) for each in ids)

    said = io.StringIO()
    streamer = DraftStreamer(Letters(), said)
    streamer.put_draft(torch.tensor([ord(each) for each in "a" * 25 + "\n" + "b" * 10]))
    streamer.put(torch.tensor([ord("c")]))
    assert "\033[4F" in said.getvalue(), "three rows of a, one of b"


def test_without_generate_it_can_be_called_directly(twins: tuple[tacg.LLM, Any]) -> None:
    ours, theirs = twins
    prompt = ours.encode("Hello", chat=False)
    out = tacg_generate(theirs, torch.tensor([prompt]), settings={"gen_length": 12, "early_stop": False})
    assert isinstance(out, torch.Tensor)
    expected = ours.generate(prompt, "tacg", gen_length=12, early_stop=False)
    assert out[0].tolist() == prompt + list(expected.tokens)


def test_published_layout(twins: tuple[tacg.LLM, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setattr("sys.path", [*sys.path])
    ours, theirs = twins
    layout = Path(__file__).parents[2] / "recipes" / "transformers"
    prompt = ours.encode("Hello", chat=False)
    ids = torch.tensor([prompt])
    said = io.StringIO()
    ask = {"max_new_tokens": 12, "settings": {"early_stop": False}}
    published = theirs.generate(
        ids, custom_generate=str(layout), trust_remote_code=True, streamer=DraftStreamer(ours.tokenizer, said), **ask
    )
    assert published.tolist() == theirs.generate(ids, custom_generate=tacg_generate, **ask).tolist()
    assert "\033[2m" in said.getvalue(), "drafts were shown"


@pytest.mark.parametrize("policy", ["tacg", Reviser(edits=True)])
def test_drafts_end_as_the_answer(twins: tuple[tacg.LLM, Any], policy: Any) -> None:
    ours, theirs = twins
    ids = torch.tensor([ours.encode("Hello", chat=False)])
    shown: list[tuple[list[int], list[bool]]] = []

    class Notes:
        def put_draft(self, value: torch.Tensor, committed: torch.Tensor) -> None:
            shown.append((value[0].tolist(), committed[0].tolist()))

        def put(self, value: torch.Tensor) -> None:
            shown.append((value.tolist(), [True] * len(value)))

        def end(self) -> None:
            shown.append(([], []))

    out = theirs.generate(
        ids, custom_generate=tacg_generate, max_new_tokens=12, drafts=Notes(), policy=policy,
        settings={"early_stop": False},
    )  # fmt: skip
    answer = out[0, ids.shape[1] :].tolist()
    assert shown[-1] == ([], [])
    assert shown[-2][0] == shown[-3][0] == answer
    assert not all(shown[0][1]), "the first draft has open positions"
    assert all(ours.model.spec.mask_id not in draft for draft, _ in shown), "masks are shown as proposals"
    with pytest.raises(TacgError, match="one prompt at a time"):
        theirs.generate(ids.repeat(2, 1), custom_generate=tacg_generate, max_new_tokens=4, drafts=Notes())


def test_a_causal_model_is_refused() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, **shape)).eval()
    with pytest.raises(TacgError, match="has causal attention"):
        model.generate(torch.tensor([[3, 4]]), custom_generate=tacg_generate, max_new_tokens=4, mask_id=1)
    with pytest.raises(TacgError, match="mask_id="):
        model.generate(torch.tensor([[3, 4]]), custom_generate=tacg_generate, max_new_tokens=4)
    model.config.is_causal = False  # as the refusal advises
    out = model.generate(torch.tensor([[3, 4]]), custom_generate=tacg_generate, max_new_tokens=4, mask_id=1)
    assert out.shape[1] > 2


def test_shifted_logits_are_read_one_position_earlier(twins: tuple[tacg.LLM, Any]) -> None:
    """A model that predicts the next token, made out of one that does not, decodes to the same."""
    ours, theirs = twins
    ids = torch.tensor([ours.encode("Hello", chat=False)])

    def shift(module: Any, args: Any, named: Any, result: Any) -> Any:
        result.logits = torch.cat([result.logits[:, 1:], result.logits[:, -1:]], dim=1)
        return result

    ask = {"custom_generate": tacg_generate, "max_new_tokens": 12, "settings": {"early_stop": False}}
    plain = theirs.generate(ids, **ask)
    hook = theirs.register_forward_hook(shift, with_kwargs=True)
    try:
        assert theirs.generate(ids, shifted=True, **ask).tolist() == plain.tolist()
        assert theirs.generate(ids, **ask).tolist() != plain.tolist()
    finally:
        hook.remove()
