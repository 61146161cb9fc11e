"""What an engine is told, and what follows from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tacg.errors import TacgError
from tacg.integrations.blocks import Block, Blocks, stable_seed
from tacg.integrations.settings import Settings, read_settings
from tacg.policies import policy_names
from tacg.policies.registry import BUILT_IN


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


BEYOND = {
    "ahd": "looks at masks beyond the block",
    "apd": "needs a verifier",
    "attention": "reads the model's attention",
    "auto": "looks at masks beyond the block",
    "d3llm": "looks at masks beyond the block",
    "dapd": "reads the model's attention",
    "joint": "reads committed tokens again",
    "lookum": "tries several branches",
    "lopa": "tries several branches",
    "saber": "reads committed tokens again",
    "sched": "looks at masks beyond the block",
    "streaming": "leaves out part of the suffix",
    "wino": "reads committed tokens again",
}


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_of_one_block_runs_gated_or_as_it_is(name: str) -> None:
    ways = [{"policy": name}] if name.startswith("tacg") else [{"policy": name}, {"base": name}]
    for way in ways:  # the released rules are gates themselves
        if name in BEYOND:
            (asked,) = way
            with pytest.raises(TacgError, match=f"`{asked}` must be a policy that fills .*`{name}` {BEYOND[name]}"):
                read_settings(way)
        else:
            policy, settings = read_settings(way)
            assert policy.label.startswith("tacg") == ("base" in way or name.startswith("tacg"))
            blocks, masks = Blocks(policy, settings, width=4, unwritable=[1]), torch.ones(1, 4, dtype=torch.bool)
            blocks.step(torch.randn(4, 9), masks, {0: Block()})  # with no more than an engine hands over


def test_auto_fits_with_one_block_at_a_time() -> None:
    with pytest.raises(TacgError, match="It fits with ahead=0"):
        read_settings({"policy": "auto"})
    policy, settings = read_settings({"policy": "auto", "ahead": 0.0})
    blocks = Blocks(policy, settings, width=4, unwritable=[1])
    blocks.step(torch.randn(4, 9), torch.ones(1, 4, dtype=torch.bool), {0: Block()})


def test_the_docs_name_what_fits_and_what_does_not() -> None:
    text = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
    (fit,) = re.findall(r"^Policies that fit a block: (.*?)\.$", text, re.MULTILINE | re.DOTALL)
    assert re.findall(r"`([\w-]+)`", fit) == [name for name in BUILT_IN if name not in BEYOND]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*?) \|$", text, re.MULTILINE))
    assert all(rows[name].startswith(why) for name, why in BEYOND.items())


def test_a_policy_is_chosen_in_one_way() -> None:
    with pytest.raises(TacgError, match=r"Give `policy`.*or `base`.*not both"):
        read_settings({"policy": "klass", "base": "klass"})
    with pytest.raises(TacgError, match=r"without a preset.*set `preset`"):
        read_settings({"policy": "tacg:llada2-mini/any"})
    published = {"preset": "llada2-mini/any"}
    assert read_settings({"policy": "tacg", **published})[0] == read_settings(published)[0]


@pytest.mark.parametrize(("base", "knobs"), [("hierarchy", {"remask": 0.3}), ("prophet", {"region_start": 4})])
def test_a_knob_may_reach_beyond_the_block(base: str, knobs: dict[str, float]) -> None:
    with pytest.raises(TacgError, match=f"`base` must be a policy that .*`{base}.*{min(knobs)}.*` reads committed"):
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
