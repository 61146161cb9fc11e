"""Tables that are stored side by side on a device keep their names and their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tacg.bench.simulated_device import SimulatedDevice
from tacg.models.loading import load_checkpoint
from tacg.models.products import SideBySide
from tacg.models.tiny import random_model, write_checkpoint

FAMILIES = ("llada", "dream", "llada2", "sdar-moe")


def groups_of(model: torch.nn.Module) -> list[tuple[SideBySide, tuple[str, ...]]]:
    modules = [module for module in model.modules() if isinstance(module, SideBySide)]
    return [(module, names) for module in modules for names in module.together]


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_held_twice(family: str, tmp_path: Path) -> None:
    """Whether a model is loaded there or moved there."""
    here, _ = load_checkpoint(write_checkpoint(tmp_path, family=family))
    with SimulatedDevice():
        loaded, _ = load_checkpoint(tmp_path, device="cuda")
        moved, _ = load_checkpoint(tmp_path)
        for there in (loaded, moved.to("cuda")):
            assert there.state_dict().keys() == here.state_dict().keys()
            for name, tensor in there.state_dict().items():
                assert torch.equal(tensor.cpu(), here.state_dict()[name]), name
            for module, names in groups_of(there):
                table = module.joint[names[0]]
                inside = range(table.data_ptr(), table.data_ptr() + table.numel() * table.element_size())
                assert all(module.get_parameter(name).data_ptr() in inside for name in names)
                assert sum(module.get_parameter(name).numel() for name in names) == table.numel()


@pytest.mark.parametrize("family", FAMILIES)
def test_back_on_the_cpu_they_are_apart(family: str) -> None:
    model, tokens = random_model(family), torch.arange(40) * 3 % 100
    from tacg.models.base import whole

    expected = model(tokens, whole([40]), torch.arange(40))
    with SimulatedDevice():
        back = model.to("cuda").to("cpu")
    assert groups_of(back)
    assert not any(module.joint for module, _ in groups_of(back))
    assert torch.equal(back(tokens, whole([40]), torch.arange(40)), expected)
