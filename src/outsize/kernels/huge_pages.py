"""Huge pages for large tensors, whose rows are read in no order.

With pages of 4 KB nearly every row of a large table is a miss in the processor's page table cache,
which costs about as much as the row itself; pages of 2 MB make that rare. The system is only asked:
where it has no huge pages to give, nothing changes.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from torch import Tensor

_LEAST_BYTES = 1 << 24
_PAGE = 1 << 12
_MADV_HUGEPAGE = 14  # of Linux


def prefer_huge_pages(tensor: Tensor) -> Tensor:
    """Ask for huge pages for a new tensor that was not written yet; returns the same tensor."""
    num_bytes = tensor.numel() * tensor.element_size()
    if tensor.device.type == "cpu" and num_bytes >= _LEAST_BYTES and sys.platform == "linux":
        first = -(-tensor.data_ptr() // _PAGE) * _PAGE
        length = (tensor.data_ptr() + num_bytes - first) // _PAGE * _PAGE
        _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), _MADV_HUGEPAGE)
    return tensor


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)
