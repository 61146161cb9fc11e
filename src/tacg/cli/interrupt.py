"""Ctrl-C and SIGTERM before there is anything to finish."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside this context a signal ends the process at once, with 130 or 143. An exception would pass through libraries
    that are being imported or loaded, and some catch, wrap or print it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, leave) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def leave(number: int, frame: FrameType | None) -> None:
    """End this process."""
    os._exit(128 + number)
