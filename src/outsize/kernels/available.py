"""Which kernels this installation can compile, and which work they do."""

from __future__ import annotations

import importlib.util
import os
from functools import cache

from torch import Tensor

from outsize.kernels.arrays import is_untraced

_LEAST_TRITON = (3, 3)  # the first with tuples, and with loops that are flattened


@cache
def has_triton() -> bool:
    """Whether a Triton is installed that compiles the kernels for GPUs."""
    if importlib.util.find_spec("triton") is None:
        return False
    import triton

    return tuple(map(int, triton.__version__.split(".")[:2])) >= _LEAST_TRITON


def uses_triton(*tensors: Tensor) -> bool:
    """Whether Triton kernels work on these tensors: on CUDA, and not traced or transformed.

    `OUTSIZE_KERNELS=torch` leaves all work to PyTorch.
    """
    return (
        is_untraced(*tensors)
        and all(tensor.is_cuda for tensor in tensors)
        and os.environ.get("OUTSIZE_KERNELS") != "torch"
        and has_triton()
    )
