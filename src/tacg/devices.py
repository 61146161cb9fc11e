"""The current device of CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor


def current_device(of: Tensor) -> AbstractContextManager[None]:
    """Makes the tensor's device the current one: Triton launches there, wherever the tensors are."""
    guard: AbstractContextManager[None] = torch.cuda.device_of(of)  # type: ignore[no-untyped-call]
    return guard
