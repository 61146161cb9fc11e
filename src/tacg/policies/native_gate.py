"""The gate on a CPU in C: persistence and the commit rule in one call instead of thirty small operations.

`tacg/gate.py` says what it means, and is used wherever this is not.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tacg.gate import GateStep
from tacg.scan.compiled import library
from tacg.types import reads_are_free

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.gate import GateConfig
    from tacg.types import Signals


@functools.cache
def kernel() -> tuple[ctypes.CDLL | None, str]:
    """native_gate.c, compiled, and by what; or None, and why."""
    found, how = library(Path(__file__).with_suffix(".c"), "-ffp-contract=off")
    if found is not None:
        address, number, real, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
        found.tacg_gate.restype = None
        found.tacg_gate.argtypes = [
            number, number, *[address] * 10, number, number, number, real, real, real, flag, flag, *[address] * 5,
        ]  # fmt: skip
    return found, how


def is_native(signals: Signals, config: GateConfig) -> bool:
    """Whether the kernel decides this step: on a CPU, with one value of each knob, and with support measured."""
    sure, knobs = signals.confidence, (config.m_base, config.m_extra, config.tau_floor, config.tau_escape)
    if signals.measure is not None or sure.dtype != torch.float32 or not reads_are_free(sure):
        return False
    if config.support == "log_ratio" or any(isinstance(knob, torch.Tensor) for knob in (*knobs, config.support_lambda)):
        return False
    plain = config.preserve_margin is None and config.k_ratio is None and config.max_support is None
    return plain and kernel()[0] is not None


def gate(signals: Signals, ready: Tensor, tokens: Tensor, streak: Tensor, config: GateConfig) -> GateStep:
    """`persistence` and `commit_rule`, for signals that `is_native` accepts.

    ready           bool [R, L], positions that the base decoder accepts
    tokens, streak  int64 [R, L], after the last step
    """
    library, _ = kernel()
    assert library is not None
    measured = signals.measured
    support = (measured["reference"], measured["readout"]) if "reference" in measured else (None, None)
    boards = (
        signals.observed, signals.first, signals.eligible, ready, signals.token, tokens, streak, signals.confidence,
        *support,
    )  # fmt: skip
    given = [each if each is None else each.contiguous() for each in boards]
    base, extra = torch.empty_like(ready), torch.empty_like(ready)
    gain, readiness = torch.empty_like(signals.confidence), torch.empty_like(signals.confidence)
    after = torch.empty_like(signals.token)
    library.tacg_gate(
        *ready.shape, *(each if each is None else each.data_ptr() for each in given),
        config.m_base, config.m_extra, config.k_extra, config.tau_floor, config.tau_escape, config.support_lambda,
        config.support == "steady", config.rejoin,
        *(each.data_ptr() for each in (base, extra, gain, readiness, after)),
    )  # fmt: skip
    return GateStep(base, extra, signals.token, signals.confidence, gain, readiness, after)
