"""Hints to the operating system about the memory of tensors: what is no longer needed, and what is large."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


def let_go(tensor: Tensor | NDArray[Any]) -> None:
    """Release the pages of a tensor or array on the CPU. Its content is lost, or read again if it maps a file.

    Only whole pages inside the tensor are released; on systems without `madvise` nothing happens.
    """
    _advise(tensor, "MADV_DONTNEED")


def hold_in_large_pages(tensor: Tensor) -> None:
    """Ask for large pages for a tensor on the CPU that is read often: fewer address look-ups."""
    _advise(tensor, "MADV_HUGEPAGE")


def _advise(tensor: Tensor | NDArray[Any], what: str) -> None:
    page, first = mmap.PAGESIZE, tensor.ctypes.data if hasattr(tensor, "ctypes") else tensor.data_ptr()
    start = -(-first // page) * page
    size = (first + tensor.nbytes) // page * page - start
    with contextlib.suppress(AttributeError, OSError):
        if size > 0:
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), getattr(mmap, what))
