"""The OpenMP threads of torch, on which kernels run too.

Threads of OpenMP wait for more work by spinning for a while. Threads of our own would have to share
the cores with those of torch that spin, and take longer to wake up.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

_FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
_is_forked = False


def _forget() -> None:
    global _is_forked
    _is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def is_usable() -> bool:
    """Whether teams of threads may be started: not in a forked child, which would wait forever."""
    return not _is_forked


@cache
def addresses() -> Any:
    """Where `GOMP_parallel`, `omp_get_thread_num` and `omp_get_num_threads` are in this process.

    They are those that torch itself was linked to, of any OpenMP library that has them. Returns
    int64 of shape (3,), or `None` where there are none, as on macOS and Windows.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        found = [ctypes.cast(getattr(library, name), ctypes.c_void_p) for name in _FUNCTIONS]
    except (OSError, AttributeError):
        return None
    return np.array([place.value for place in found], dtype=np.int64)
