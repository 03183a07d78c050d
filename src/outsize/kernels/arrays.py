"""Tensors as the arrays that compiled kernels take."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_held, _arrays = threading.local(), threading.local()
_PLAIN_TYPES = (Tensor, nn.Parameter)


def is_untraced(*tensors: Tensor) -> bool:
    """Whether kernels may read these tensors: they are neither traced nor transformed."""
    if (
        torch.compiler.is_compiling()  # first: torch.compile cannot read the rest
        or torch._C._is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
    ):
        return False
    return all(type(tensor) in _PLAIN_TYPES for tensor in tensors)


def is_plain(*tensors: Tensor) -> bool:
    """Whether compiled kernels can work on these tensors: on the CPU, and untraced."""
    return is_untraced(*tensors) and all(tensor.is_cpu for tensor in tensors)


def is_plain_float(*tensors: Tensor) -> bool:
    """`is_plain`, for contiguous tensors of float32."""
    return is_plain(*tensors) and all(
        tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in tensors
    )


def scratch(name: str, num: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A vector of this thread that the next call with the same name returns again.

    New memory of some megabytes in every step costs more than kernels do: the system hands it out,
    and takes it back, page by page.
    """
    held: Tensor | None = getattr(_held, name, None)
    if held is None or held.shape[0] < num or held.dtype != dtype:
        held = torch.empty(max(num, 1) * 5 // 4, dtype=dtype)
        setattr(_held, name, held)
    return held[:num]


def scratch_array(name: str, dtype: Any, *shape: int) -> Any:
    """An array of this thread that the next call with the same name and shape returns again.

    It is quicker than `scratch` where shapes seldom change.
    """
    found = _arrays.__dict__.get(name)
    if found is None or found.shape != shape:
        found = _arrays.__dict__[name] = np.empty(shape, dtype=dtype)
    return found


def array(tensor: Tensor) -> Any:
    """A contiguous tensor as an array that shares its memory."""
    return (tensor.detach() if tensor.requires_grad else tensor).numpy()


def addresses(tensors: Sequence[Tensor]) -> Any:
    """The addresses of tensors, for kernels that read many; the caller keeps the tensors."""
    return np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    """An uninitialized array, from torch's allocator."""
    return torch.empty(shape, dtype=dtype).numpy()
