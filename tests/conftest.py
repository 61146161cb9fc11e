from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU here; read when triton is first imported

import signal
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, settings

import tacg
from tacg.models.tiny import write_checkpoint
from tacg.scan import step_scan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Whoever runs us in the background ignores Ctrl-C, and our children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Examples are derived from the test's name: a red test is red again the next time.
settings.register_profile(
    "tacg", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tacg")


@pytest.fixture(scope="session")
def llm() -> tacg.LLM:
    """The tiny random model: a real network, real tokenizer, real template."""
    return tacg.load("tiny")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint directory that a test may damage."""
    return write_checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def _without_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scan as on a machine that has no C compiler."""
    monkeypatch.setattr(step_scan, "kernel", lambda: (None, "no C compiler"))
    step_scan.backend_for.cache_clear()
    yield
    step_scan.backend_for.cache_clear()


@pytest.fixture
def _no_hang() -> Iterator[None]:
    """Make a test that would wait forever fail instead."""

    def ring(*_: object) -> None:
        raise TimeoutError("hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def _poison_uninitialised_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that was never written reads as NaN instead of old numbers."""
    real = torch.Tensor.new_empty

    def poisoned(self: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        made = real(self, *args, **kwargs)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
