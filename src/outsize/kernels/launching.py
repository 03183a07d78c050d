"""The device that Triton kernels are launched on."""

from __future__ import annotations

import contextlib
from functools import cache

import torch
from torch import Tensor


def on_device(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """A context in which kernels are launched on the device of a tensor."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(tensor.device)


@cache
def num_processors(device: torch.device) -> int:
    """Number of multiprocessors of a GPU; a few under Triton's interpreter."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
