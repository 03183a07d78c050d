"""Products of matrices in full float32 precision, whatever the user has set.

From 2.9 on, torch has a setting per kind of device, and refuses to read the one for all devices
where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_FULL = ("none", "ieee")  # values of a setting per device; nothing is set by default


def is_full_precision(tensor: Tensor) -> bool:
    """Whether torch multiplies float32 matrices on this device in full precision."""
    setting = _setting(tensor)
    if setting is None:
        return torch.get_float32_matmul_precision() == "highest"
    return setting.fp32_precision in _FULL


@contextmanager
def full_precision(tensor: Tensor) -> Iterator[None]:
    """Multiply in full float32 precision, without autocast, TF32 or bfloat16."""
    with _without_shortcuts(tensor), torch.autocast(tensor.device.type, enabled=False):
        yield


@contextmanager
def _without_shortcuts(tensor: Tensor) -> Iterator[None]:
    if is_full_precision(tensor):
        yield
        return
    setting = _setting(tensor)
    if setting is None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    before = setting.fp32_precision
    setting.fp32_precision = "ieee"
    try:
        yield
    finally:
        setting.fp32_precision = "none"
        if setting.fp32_precision != before:  # it was not taken from a setting for all
            setting.fp32_precision = before


def _setting(tensor: Tensor) -> Any:
    """What holds the setting of a device; `None` if this torch has one for all."""
    backend = torch.backends.cuda if tensor.is_cuda else torch.backends.mkldnn
    matmul = getattr(backend, "matmul", None)
    return matmul if hasattr(matmul, "fp32_precision") else None
