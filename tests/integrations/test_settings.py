"""What an engine is told, and what follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tacg.errors import TacgError
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
        assert blocks.trajectories.memory is not None
        assert blocks.trajectories.memory.reference is not None
        assert blocks.trajectories.memory.reference.dtype == dtype


def test_without_promotions_no_reference_is_kept() -> None:
    policy, settings = read_settings({"k_extra": 0})
    blocks = Blocks(policy, settings, width=4, unwritable=[1])
    blocks.step(torch.randn(4, 9), torch.ones(1, 4, dtype=torch.bool), {0: Block()})
    assert blocks.trajectories.memory is not None
    assert blocks.trajectories.memory.reference is None


def test_every_policy_of_one_block_can_be_gated() -> None:
    beyond = {
        *("ahd", "apd", "attention", "d3llm", "dapd", "joint", "lookum", "lopa", "saber", "sched", "streaming", "wino"),
    }
    for name in policy_names():
        if name in beyond:
            with pytest.raises(TacgError, match=f"`base` must be a policy that fills .*`{name}` reaches beyond it"):
                read_settings({"base": name})
        elif not name.startswith("tacg"):  # the released rules are gates themselves
            policy, settings = read_settings({"base": name})
            assert policy.label.startswith("tacg")
            blocks, masks = Blocks(policy, settings, width=4, unwritable=[1]), torch.ones(1, 4, dtype=torch.bool)
            blocks.step(torch.randn(4, 9), masks, {0: Block()})  # with no more than an engine hands over


@pytest.mark.parametrize(("base", "knobs"), [("hierarchy", {"remask": 0.3}), ("prophet", {"region_start": 4})])
def test_a_knob_may_reach_beyond_the_block(base: str, knobs: dict[str, float]) -> None:
    with pytest.raises(TacgError, match=f"`base` must be a policy that .*`{base}.*{min(knobs)}.*` reaches beyond"):
        read_settings({"base": base, **knobs})


def test_presets_bring_their_part_of_the_decode(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('policy = "tacg"\n[knobs]\nk_extra = 1\n[decode]\ntemperature = 0.7\nobserve = "sequence"\n')
    policy, settings = read_settings({"preset": str(path)})
    assert (policy.values()["k_extra"], settings.temperature) == (1, 0.7)
    assert "observe='sequence', which has no effect" in caplog.text
    assert read_settings({"preset": str(path), "temperature": 0.2})[1].temperature == 0.2


def test_ids_that_the_model_lacks_are_told_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    policy, settings = read_settings({"suppress": [3, 200]})
    blocks = Blocks(policy, settings, width=4, unwritable=[1])
    blocks.step(torch.randn(4, 9), torch.ones(1, 4, dtype=torch.bool), {0: Block()})
    assert blocks.unwritable == [1, 3]
    assert "names 200, but the model has 9 ids" in caplog.text


def test_a_gate_is_not_gated_again() -> None:
    for base in ("tacg", "tacg-released"):
        with pytest.raises(TacgError, match="must be what TACG gates"):
            read_settings({"base": base})


def test_seeds_are_the_same_everywhere_and_for_ever() -> None:
    assert stable_seed(0, "a", 32) == 3370924962119432176
    assert stable_seed(0, "a", 32) != stable_seed(0, "a", 64) != stable_seed(1, "a", 64)
