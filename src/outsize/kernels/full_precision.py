"""Products of matrices in full float32 precision, whatever the user has set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def full_precision(tensor: Tensor) -> Iterator[None]:
    """Multiply in full float32 precision, without autocast, TF32 or bfloat16."""
    before = torch.get_float32_matmul_precision()
    if before != "highest":
        torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(tensor.device.type, enabled=False):
            yield
    finally:
        if before != "highest":
            torch.set_float32_matmul_precision(before)
