"""What an engine is told, and what follows from it."""

from __future__ import annotations

import torch

from tacg.integrations.blocks import Block, Blocks, stable_seed
from tacg.integrations.settings import Settings, read_settings
from tacg.policies import policy_names


def test_large_references_are_kept_in_half() -> None:
    assert Settings().kind(32, 157184) == "bf16"  # LLaDA2
    assert Settings().kind(4, 151936) == "fp32"  # SDAR
    assert Settings(memory="fp32").kind(32, 157184) == "fp32"
    for memory, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        policy, settings = read_settings({"memory": memory})
        blocks = Blocks(policy, settings, width=4, unwritable=[1])
        blocks.step(torch.randn(4, 9), torch.ones(1, 4, dtype=torch.bool), {0: Block()})
        assert blocks.memory is not None
        assert blocks.memory.reference is not None
        assert blocks.memory.reference.dtype == dtype


def test_without_promotions_no_reference_is_kept() -> None:
    policy, settings = read_settings({"k_extra": 0})
    blocks = Blocks(policy, settings, width=4, unwritable=[1])
    blocks.step(torch.randn(4, 9), torch.ones(1, 4, dtype=torch.bool), {0: Block()})
    assert blocks.memory is not None
    assert blocks.memory.reference is None


def test_every_policy_can_be_gated() -> None:
    for name in policy_names():
        if not name.startswith("tacg"):  # the released rules are gates themselves
            policy, _ = read_settings({"base": name})
            assert policy.label.startswith("tacg")


def test_seeds_are_the_same_everywhere_and_for_ever() -> None:
    assert stable_seed(0, "a", 32) == 3370924962119432176
    assert stable_seed(0, "a", 32) != stable_seed(0, "a", 64) != stable_seed(1, "a", 64)
