"""`encode_rows`, `decode_rows` and `round_rows` on CUDA: the same bytes and numbers, in one pass.

A line of bytes starts with its scale, which may stand anywhere in memory, so it is read and written
byte by byte. Numbers are rounded half to even, by an addition that leaves no bits for fractions.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from outsize.kernels.launches_triton import ceil_div, launch, power_of_two
from outsize.kernels.launching import on_device

_TILE = 2048
_SMALLEST = tl.constexpr(torch.finfo(torch.float32).tiny)


def encode_by_triton(vectors: Tensor, dtype: torch.dtype, content: Tensor) -> None:
    """Write vectors as bytes."""
    num, dim = vectors.shape
    lines, columns = _tile(dim)
    if num and dim:
        with on_device(vectors):
            launch(
                encode_kernel, (ceil_div(num, lines),),
                (vectors, content, content.view(dtype), num, dim, content.shape[1],
                 float(torch.iinfo(dtype).max)),
                ITEM_BYTES=dtype.itemsize, LINES=lines, COLUMNS=columns,
            )  # fmt: skip


def decode_by_triton(content: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Vectors from bytes."""
    num = content.shape[0]
    vectors = torch.empty(num, dim, device=content.device)
    lines, columns = _tile(dim)
    if num and dim:
        with on_device(content):
            launch(
                decode_kernel, (ceil_div(num, lines),),
                (content, content.view(dtype), vectors, num, dim, content.shape[1]),
                ITEM_BYTES=dtype.itemsize, LINES=lines, COLUMNS=columns,
            )  # fmt: skip
    return vectors


def round_by_triton(vectors: Tensor, dtype: torch.dtype) -> Tensor:
    """Vectors as they are decoded."""
    num, dim = vectors.shape
    out = torch.empty_like(vectors)
    lines, columns = _tile(dim)
    if num and dim:
        with on_device(vectors):
            launch(
                round_kernel, (ceil_div(num, lines),),
                (vectors, out, num, dim, float(torch.iinfo(dtype).max)),
                LINES=lines, COLUMNS=columns,
            )  # fmt: skip
    return out


def _tile(dim: int) -> tuple[int, int]:
    columns = power_of_two(max(dim, 1))
    return min(128, max(1, _TILE // columns)), columns


@triton.jit
@no_type_check
def _scaled(values, largest):
    """Whole numbers, as float32, and the scale of each line; NaN for a line that has one."""
    bits = values.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # whose largest is NaN, if any is
    scale = tl.max(bits, axis=1).to(tl.float32, bitcast=True)
    scale = tl.div_rn(scale, tl.zeros_like(scale) + largest)
    divisor = tl.maximum(scale, _SMALLEST)
    numbers = tl.div_rn(values, tl.zeros_like(values) + divisor[:, None])
    numbers = (numbers + 12582912.0) - 12582912.0  # 1.5 · 2²³
    return tl.minimum(tl.maximum(numbers, -largest), largest), scale


@triton.jit(do_not_specialize=["num"])
@no_type_check
def encode_kernel(
    vectors, content, numbers, num, dim, line_bytes, largest,
    ITEM_BYTES: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A scale and whole numbers per line."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    is_line = line < num
    column = tl.arange(0, COLUMNS)[None, :]
    mask = is_line[:, None] & (column < dim)
    values = tl.load(vectors + line[:, None] * dim + column, mask=mask, other=0.0)
    whole, scale = _scaled(values, largest)
    bits = scale.to(tl.int32, bitcast=True)
    for byte in tl.static_range(4):
        tl.store(
            content + line * line_bytes + byte, ((bits >> (8 * byte)) & 255).to(tl.uint8),
            mask=is_line,
        )  # fmt: skip
    first = (line * line_bytes + 4) // ITEM_BYTES
    kind = numbers.dtype.element_ty
    tl.store(numbers + first[:, None] + column, whole.to(tl.int32).to(kind), mask=mask)


@triton.jit(do_not_specialize=["num"])
@no_type_check
def decode_kernel(
    content, numbers, vectors, num, dim, line_bytes,
    ITEM_BYTES: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Whole numbers times the scale of their line."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    is_line = line < num
    bits = tl.zeros([LINES], tl.int32)
    for byte in tl.static_range(4):
        part = tl.load(content + line * line_bytes + byte, mask=is_line, other=0)
        bits = bits | (part.to(tl.int32) << (8 * byte))
    scale = bits.to(tl.float32, bitcast=True)
    column = tl.arange(0, COLUMNS)[None, :]
    mask = is_line[:, None] & (column < dim)
    first = (line * line_bytes + 4) // ITEM_BYTES
    whole = tl.load(numbers + first[:, None] + column, mask=mask, other=0).to(tl.float32)
    tl.store(vectors + line[:, None] * dim + column, whole * scale[:, None], mask=mask)


@triton.jit(do_not_specialize=["num"])
@no_type_check
def round_kernel(vectors, out, num, dim, largest, LINES: tl.constexpr, COLUMNS: tl.constexpr):
    """Encode and decode, without bytes."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (line < num)[:, None] & (column < dim)
    at = line[:, None] * dim + column
    whole, scale = _scaled(tl.load(vectors + at, mask=mask, other=0.0), largest)
    tl.store(out + at, whole * scale[:, None], mask=mask)
