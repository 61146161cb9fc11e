"""JointThreshold: commit, edit, and read a full block again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tacg
from tacg.models.tiny import write_checkpoint
from tacg.policies import get_policy
from tacg.types import Signals
from tests.policies.test_policies import signals
from tests.worlds import ReactiveDenoiser, decode_one

CPU = torch.device("cpu")


def block(confidence: list[float], masked: str, written: list[int]) -> Signals:
    """Ones in `masked` are masks; the model would write token 0 everywhere."""
    masks = torch.tensor([[mark == "1" for mark in masked]])
    return replace(signals(confidence), eligible=masks, masked=masks, written=torch.tensor([written]))


def test_masks_above_one_threshold_and_other_tokens_above_another() -> None:
    policy = get_policy("joint", threshold=0.5, edit_threshold=0.7)
    given = block([0.5, 0.6, 0.7, 0.8, 0.9], "11000", [1, 1, 5, 5, 0])
    decision, _ = policy.decide(given, policy.start(1, 5, CPU))
    assert decision.base[0].tolist() == [False, True, False, False, False], "0.5 does not exceed 0.5"
    assert decision.edit is not None
    assert decision.edit[0].tolist() == [False, False, False, True, False], "neither at 0.7 nor what is there already"


@pytest.mark.parametrize(("most", "stays"), [(0, [False]), (1, [True, False]), (3, [True, True, True, False])])
def test_a_full_block_is_read_again_so_often_at_most(most: int, stays: list[bool]) -> None:
    policy = get_policy("joint", post_edit_steps=most)
    state, heard = policy.start(1, 2, CPU), []
    for masked in ("01", *["00"] * (len(stays) - 1)):
        decision, state = policy.decide(block([0.9, 0.9], masked, [5, 5]), state)
        assert decision.stay is not None
        heard += decision.stay.tolist()
    assert heard == stays
    decision, _ = policy.decide(block([0.9, 0.9], "11", [1, 1]), state)
    assert decision.stay is not None
    assert decision.stay.tolist() == [most > 0], "a new block counts anew"


def test_a_cache_of_blocks_keeps_what_a_block_is_in_the_end(tmp_path: Path) -> None:
    """It is made for models that see by blocks: the cache of a block must hold the edited tokens."""
    llm = tacg.load(write_checkpoint(tmp_path / "model", family="llada2", seed=2, liveliness=4.0))
    settings = {"gen_length": 96, "block_length": 32, "early_stop": False, "threshold": 0.3}
    kept, anew = (llm.generate("Hello there", "joint", **settings, cache=cache) for cache in ("block", "none"))
    assert (kept.tokens, kept.commits, kept.steps) == (anew.tokens, anew.commits, anew.steps)
    assert kept.positions < anew.positions
    assert "edit" in {each.reason for each in kept.commits}


def decoded(seed: int, most: int) -> tuple[int, list[str]]:
    """Steps of a decode in one block, all of which its first step commits, and what the later ones did."""
    policy = get_policy("joint", threshold=0.0, post_edit_steps=most)
    output = decode_one(ReactiveDenoiser(seed), (3, 4), policy, gen_length=12, block_length=12, early_stop=False)
    return output.steps, [each.reason for each in output.commits if each.step > 1]


@pytest.mark.parametrize("seed", [5, 13, 16, 17])
def test_the_step_that_fills_a_block_is_followed_by_others_until_nothing_changes(seed: int) -> None:
    """The first step writes everything and edits nothing: it is what comes next that corrects it."""
    assert decoded(seed, 0) == (1, [])
    steps, corrections = decoded(seed, 16)
    assert 2 < steps < 12, "neither cut short nor at the end of its budget"
    assert set(corrections) == {"edit"}
    assert decoded(seed, 1)[0] == 2
