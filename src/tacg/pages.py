"""Giving memory back to the system while the tensor that it belongs to lives on."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def let_go(tensor: Tensor) -> None:
    """Give back the pages behind a tensor on the CPU; what it holds is lost (or read again, if it maps a file).

    Only whole pages inside the tensor; on systems without `madvise` nothing happens.
    """
    page = mmap.PAGESIZE
    start = -(-tensor.data_ptr() // page) * page
    size = (tensor.data_ptr() + tensor.nbytes) // page * page - start
    with contextlib.suppress(AttributeError, OSError):
        if size > 0:
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
