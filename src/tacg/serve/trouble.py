"""Classify the error of a failed step: a lost device, or a bug in a model or policy (no memory: see the engine)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tacg.engine.footprint import out_of_memory

if TYPE_CHECKING:
    from tacg.models.base import Denoiser


class DeviceLostError(Exception):
    """The device no longer answers any call, for example after an illegal access or an assertion in a CUDA kernel."""


def check_device(model: Denoiser) -> None:
    """Raise if the model's device fails a trivial operation. It is tried, because no list of messages is complete."""
    try:
        torch.ones(1, device=model.device).add_(1).item()
    except Exception as error:
        if not out_of_memory(error):
            raise DeviceLostError(str(error).partition("\n")[0]) from error


def repeats(model: Denoiser) -> bool:
    """Whether a restarted row gives the same answer, to the last bit, in another batch.

    This was measured on CPUs. Other devices may add up matrix products in another order for another batch.
    """
    return torch.device(model.device).type == "cpu"
