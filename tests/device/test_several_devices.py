"""Layers split over two devices: tensors are never mixed, and the results are those of one CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tacg
from tacg.bench.simulated_device import SimulatedDevice
from tacg.errors import TacgError
from tacg.models.tiny import write_checkpoint


@pytest.mark.parametrize("family", ["llada", "dream", "llada2", "a2d"])
def test_decodes_are_the_cpus(family: str, tmp_path: Path) -> None:
    """Shifted logits, experts, a tied table; with and without a cache."""
    here = tacg.load(write_checkpoint(tmp_path, family=family, liveliness=4.0))
    cache = "auto" if family == "llada2" else "dual"
    settings: dict[str, Any] = {"gen_length": 32, "block_length": 16}
    prompts = ["12 + 7", "a longer prompt than that"]
    with SimulatedDevice():
        there = tacg.load(tmp_path, device="cuda:0,cuda:1")
        model: Any = there.model
        assert {each.device.index for each in model.parameters()} == {0, 1}
        for mode in (cache, "none"):
            found = there.generate(prompts, "tacg", **settings, cache=mode)
            expected = here.generate(prompts, "tacg", **settings, cache=mode)
            assert [out.tokens for out in found] == [out.tokens for out in expected]
        ids = torch.arange(40)[None] * 2
        torch.testing.assert_close(there.logits(ids).cpu(), here.logits(ids), atol=2e-4, rtol=2e-4)


def test_devices_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    with SimulatedDevice():
        for names, why in (
            ("cuda:0,cpu", "one kind"),
            ("cuda:0,cuda:0", "each once"),
            ("cuda:0,cuda:1,cuda:2", "2 layers"),
        ):
            with pytest.raises(TacgError, match=why):
                tacg.load(tmp_path, device=names)


def test_kernels_run_on_the_device_of_their_tensors() -> None:
    """Triton launches on the current device, which is the first: everything is on the second."""
    pytest.importorskip("triton")
    here = tacg.load("pocket").generate("12 + 7", "tacg", gen_length=16, temperature=0.5)
    with SimulatedDevice() as device:
        there = tacg.load("pocket", device="cuda:1").generate("12 + 7", "tacg", gen_length=16, temperature=0.5)
    assert (there.tokens, there.steps) == (here.tokens, here.steps)
    assert device.tally.by("operation").keys() >= {"scan_kernel", "weigh_kernel", "draw_kernel"}
    assert device.index == 0
