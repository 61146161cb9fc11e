"""What a step that raised means: no memory, a device that is gone, or a mistake of a model or policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tacg.models.base import Denoiser

# torch has a type for memory that an accelerator lacks; what the CPU and the libraries lack it says in words.
NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "ALLOC_FAILED")


class DeviceLostError(Exception):
    """The device answers no call any more, as after an illegal access or a failed assertion in a CUDA kernel."""


def out_of_memory(error: BaseException) -> bool:
    """Whether fewer rows would have gone through."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)


def check_device(model: Denoiser) -> None:
    """Raise if the model's device no longer does the least thing. It is tried: no list of messages is complete."""
    try:
        torch.ones(1, device=model.device).add_(1).item()
    except Exception as error:
        if not out_of_memory(error):
            raise DeviceLostError(str(error).partition("\n")[0]) from error


def free_memory(model: Denoiser) -> None:
    """Give back what torch keeps for later."""
    if torch.device(model.device).type == "cuda":
        torch.cuda.empty_cache()


def repeats(model: Denoiser) -> bool:
    """Whether a row that starts again, among other neighbours, says the same to the last bit.

    That is measured on CPUs. On others matrix products may be added up in another order for another batch.
    """
    return torch.device(model.device).type == "cpu"
