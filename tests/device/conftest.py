from __future__ import annotations

import pytest

from tacg.bench.simulated_device.guard import register_guard
from tacg.errors import TacgError


@pytest.fixture(scope="session", autouse=True)
def _guard() -> None:
    """Everything here needs the compiled guard."""
    try:
        register_guard()
    except TacgError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _poison_uninitialised_memory() -> None:
    """Switched off here, because it would be counted."""
