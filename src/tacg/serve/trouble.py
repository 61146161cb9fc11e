"""Classify the error of a failed step: no memory, a lost device, or a bug in a model or policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tacg.models.base import Denoiser

# torch has an exception type for accelerator memory; for the CPU and libraries there are only messages.
NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "ALLOC_FAILED")


class DeviceLostError(Exception):
    """The device no longer answers any call, for example after an illegal access or an assertion in a CUDA kernel."""


def out_of_memory(error: BaseException) -> bool:
    """Whether the step failed for lack of memory, so that fewer rows may succeed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)


def check_device(model: Denoiser) -> None:
    """Raise if the model's device fails a trivial operation. It is tried, because no list of messages is complete."""
    try:
        torch.ones(1, device=model.device).add_(1).item()
    except Exception as error:
        if not out_of_memory(error):
            raise DeviceLostError(str(error).partition("\n")[0]) from error


def free_memory(model: Denoiser) -> None:
    """Return memory that torch has cached."""
    if torch.device(model.device).type == "cuda":
        torch.cuda.empty_cache()


def repeats(model: Denoiser) -> bool:
    """Whether a restarted row gives the same answer, to the last bit, in another batch.

    This was measured on CPUs. Other devices may add up matrix products in another order for another batch.
    """
    return torch.device(model.device).type == "cpu"
