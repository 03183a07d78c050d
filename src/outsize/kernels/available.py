"""Which kernels this installation can compile."""

from __future__ import annotations

import importlib.util
from functools import cache


@cache
def has_triton() -> bool:
    """Whether Triton is installed, which compiles kernels for GPUs."""
    return importlib.util.find_spec("triton") is not None
