"""A verifier: what it is asked, what it may cache, what it costs, and which models cannot be one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tacg
from tacg.cli.main import run
from tacg.engine.loop import Engine
from tacg.experiments.evaluate import identity_for
from tacg.models.tiny import write_checkpoint
from tests.worlds import ReactiveDenoiser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tacg.models.base import Denoiser, Span

SETTINGS: dict[str, Any] = {"gen_length": 40, "block_length": 16, "early_stop": False, "weight": 0.5}
PROMPTS = [[7 + (3 * row + place) % 60 for place in range(length)] for row, length in enumerate((5, 23, 12))]


class Spy:
    """Passes calls on and keeps the spans. Without `remembers` it is asked for whole drafts."""

    def __init__(self, model: Any, *, remembers: bool = True) -> None:
        self.model, self.device = model, model.device
        self.spec = model.spec if remembers else replace(model.spec, causal_block=None)
        self.spans: list[Span] = []

    def __call__(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        self.spans += spans
        logits: Tensor = self.model(tokens, spans, select)
        return logits


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Much like the model that it verifies would be if it looked back only: not at all, so its voice is small."""
    return write_checkpoint(tmp_path_factory.mktemp("qwen2"), family="qwen2", liveliness=1.0, tie_word_embeddings=False)


@pytest.fixture(scope="module", params=["llada", "dream"])
def llm(request: pytest.FixtureRequest, verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> tacg.LLM:
    directory = tmp_path_factory.mktemp(request.param)
    return tacg.load(write_checkpoint(directory, family=request.param, liveliness=6.0), verifier=verifier)


def decode(llm: tacg.LLM, verifier: Denoiser, prompts: list[list[int]], policy: str) -> list[tacg.Output]:
    return tacg.LLM(llm.model, llm.tokenizer, verifier).generate(prompts, policy, **SETTINGS)


@pytest.mark.parametrize("policy", ["apd", "tacg+apd"])
def test_what_it_remembers_of_a_draft_is_what_it_would_compute(llm: tacg.LLM, policy: str) -> None:
    fast, slow = Spy(llm.verifier), Spy(llm.verifier, remembers=False)
    (ours,), (theirs,) = (decode(llm, each, PROMPTS[:1], policy) for each in (fast, slow))
    assert ours.commits == theirs.commits
    assert 3 < ours.steps < 40, "sometimes several at once"
    assert ours.auxiliary == theirs.auxiliary == ours.forwards == len(fast.spans)
    assert ours.auxiliary_positions == sum(len(span) for span in fast.spans) < theirs.auxiliary_positions
    assert theirs.auxiliary_positions == sum(span.stop for span in slow.spans)


@pytest.mark.parametrize("policy", ["apd", "tacg+apd"])
def test_rows_in_a_batch_decode_as_alone(llm: tacg.LLM, policy: str) -> None:
    together = llm.generate(PROMPTS, policy, **SETTINGS)
    assert together == [llm.generate(prompt, policy, **SETTINGS) for prompt in PROMPTS]


def test_given_text_between_holes_is_part_of_the_draft(llm: tacg.LLM) -> None:
    """Blocks that begin with what is given: the verifier has not seen it when they open."""
    mask = llm.model.spec.mask_id
    ids = [*[mask] * 14, *[9] * 6, *[mask] * 9, 8, 8, *[mask] * 9]
    fast, slow = (Spy(llm.verifier, remembers=remembers) for remembers in (True, False))
    outputs = [
        tacg.LLM(llm.model, llm.tokenizer, each).fill(ids, "apd", prompt="ab", block_length=16, weight=0.5)
        for each in (fast, slow)
    ]
    assert outputs[0].commits == outputs[1].commits


def test_everything_or_nothing() -> None:
    """A verifier that agrees by definition accepts each block at once; one that decides alone does not."""
    model, decode = ReactiveDenoiser(2), tacg.Decode(gen_length=24, block_length=8, early_stop=False)
    whole = Engine(model, verifier=ReactiveDenoiser(5)).generate(
        [tacg.Request((3,), tacg.get_policy("apd", weight=1.0), decode)]
    )
    assert (whole[0].steps, whole[0].auxiliary, whole[0].auxiliary_positions) == (3, 3, 9 + 17 + 25)
    alone = Engine(model, verifier=ReactiveDenoiser(5)).generate(
        [tacg.Request((3,), tacg.get_policy("apd", weight=0.0), decode)]
    )
    assert alone[0].steps > 12
    assert [commit.position for commit in alone[0].commits] == list(range(24)), "from left to right"


def test_a_smaller_vocabulary_is_cut_to_what_is_shared() -> None:
    small = ReactiveDenoiser(5, vocab=11)
    request = tacg.Request((20, 22), tacg.get_policy("apd", weight=0.9), tacg.Decode(gen_length=12, early_stop=False))
    (output,) = Engine(ReactiveDenoiser(2), verifier=small).generate([request])
    assert max(output.tokens) >= 11, "what it lacks can be written, one at a time"
    assert max(max(row) for row in small.rows_seen) < 11


def test_who_cannot_verify(llm: tacg.LLM, checkpoint: Path, verifier: Path, tmp_path: Path) -> None:
    with pytest.raises(tacg.TacgError, match=r"`apd` needs a verifier.*verifier=DIRECTORY.*--verifier"):
        tacg.load("tiny").generate("a", "apd")
    with pytest.raises(tacg.TacgError, match="must be an autoregressive model"):
        tacg.load("tiny", verifier=checkpoint)
    with pytest.raises(tacg.TacgError, match="must have the tokenizer of 'pocket'"):
        tacg.load("pocket", verifier=verifier)
    short = write_checkpoint(tmp_path, family="qwen2", max_position_embeddings=32)
    with pytest.raises(tacg.TacgError, match="must fit 32 positions of the verifier"):
        tacg.load("tiny", verifier=short).generate([7, 8], "apd", gen_length=31)


def test_another_verifier_is_another_model(llm: tacg.LLM) -> None:
    """Results with one verifier are not mistaken for results with another, or without any."""
    plain, same, other = (tacg.LLM(llm.model, llm.tokenizer, each) for each in (None, llm.verifier, llm.model))
    assert same.identity == llm.identity == plain.identity | {"verifier": llm.identity["verifier"]}
    assert other.identity != llm.identity
    for policy in ("apd", "tacg+apd"):
        assert identity_for(llm, tacg.get_policy(policy)) == llm.identity
    assert identity_for(llm, tacg.get_policy("tacg")) == plain.identity, "which does not ask it"


def test_the_command_line_takes_one(
    verifier: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tacg", "generate", "a", "-m", "tiny", "-p", "apd", "-s", "gen_length=8", "--json"]
    monkeypatch.setattr(sys, "argv", [*words, "--verifier", str(verifier)])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code in (0, None)
    (output,) = json.loads(capsys.readouterr().out.splitlines()[-1])["outputs"]
    assert output["auxiliary"] == output["forwards"] > 0
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert "`apd` needs a verifier" in capsys.readouterr().err


def test_nothing_is_asked_of_it_by_others(llm: tacg.LLM) -> None:
    spy = Spy(llm.verifier)
    outputs = tacg.LLM(llm.model, llm.tokenizer, spy).generate(PROMPTS, "confidence", gen_length=8)
    assert not spy.spans
    assert all(output.auxiliary == output.auxiliary_positions == 0 for output in outputs)
