"""The software and hardware that a number was measured with."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from tacg.version import __version__


def surroundings(device: str | torch.device = "cpu") -> dict[str, Any]:
    """The software and hardware that a number was measured with."""
    hardware = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    if torch.device(device).type == "cuda" and torch.cuda.is_available():
        hardware = f"{torch.cuda.get_device_name(device)}; {hardware}"
    return {"version": __version__, "torch": str(torch.__version__), "hardware": hardware}
