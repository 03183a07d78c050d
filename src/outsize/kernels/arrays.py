"""Tensors as the arrays that compiled kernels take."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn

_held = threading.local()


def is_plain(*tensors: Tensor) -> bool:
    """Whether kernels can work on these tensors: on the CPU, and not traced or transformed."""
    if torch.compiler.is_compiling():  # first: torch.compile cannot read the rest
        return False
    for tensor in tensors:
        if not (
            type(tensor) in (Tensor, nn.Parameter)
            and tensor.is_cpu
            and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        ):
            return False
    return not torch._C._is_tracing()


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


def array(tensor: Tensor) -> Any:
    """A contiguous tensor as an array that shares its memory."""
    return (tensor.detach() if tensor.requires_grad else tensor).numpy()


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    """An uninitialized array, from torch's allocator."""
    return torch.empty(shape, dtype=dtype).numpy()
