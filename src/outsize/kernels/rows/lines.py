"""Lines of tensors of any type, written in place."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def put_lines(lines: Tensor, rows: Int64[Tensor, " n"], values: Tensor) -> None:
    """Write lines of any type in place; no row may be named twice."""
    # torch cannot write unsigned ones by index
    as_signed(lines)[rows] = as_signed(values)


def as_signed(values: Tensor) -> Tensor:
    """The same bits in a type that torch can do everything with."""
    signed = _SIGNED.get(values.dtype)
    return values if signed is None else values.view(signed)
