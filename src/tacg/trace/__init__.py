"""Traces: every step of a decode as JSONL, a player in one HTML file, and replays of other policies on the signals.

Names are loaded on first use, so reading a trace and making a player does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacg.trace.format import Trace, read_trace, trace_of
    from tacg.trace.open_loop import replay
    from tacg.trace.recorder import Lines, record

_MODULE_OF = {
    "Lines": "recorder", "Trace": "format", "read_trace": "format", "record": "recorder", "replay": "open_loop",
    "trace_of": "format",
}  # fmt: skip

__all__ = ["Lines", "Trace", "read_trace", "record", "replay", "trace_of"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tacg.trace' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tacg.trace.{_MODULE_OF[name]}"), name)
