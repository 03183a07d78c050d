"""Vectors as bytes: a float32 scale, then whole numbers of one or two bytes.

The compiled paths make one pass, and give the same bytes and numbers as the torch code.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from outsize.kernels.arrays import array, is_plain, is_plain_float
from outsize.kernels.available import uses_triton
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.rows.scaled import scale_rows, unscale_rows

SCALE_BYTES = 4
_LEAST_NUMBERS = 1 << 14
_MOST_COLUMNS = 8192  # of a vector that a Triton kernel holds at once


def encode_rows(vectors: Float32[Tensor, "n dim"], dtype: torch.dtype) -> UInt8[Tensor, "n bytes"]:
    """Vectors as bytes.

    Args:
        vectors: The vectors.
        dtype: Type of the whole numbers: int8 or int16.
    """
    num, dim = vectors.shape
    content = vectors.new_empty(num, SCALE_BYTES + dtype.itemsize * dim, dtype=torch.uint8)
    kernels = _kernels(vectors.numel())
    vectors = vectors.contiguous()
    if kernels is not None and is_plain_float(vectors):
        largest = float(torch.iinfo(dtype).max)
        kernels.encode(array(vectors), dtype.itemsize, largest, array(content))
        return content
    if _uses_triton(vectors, dim):
        from outsize.kernels.wire.scaled_bytes_triton import encode_by_triton

        encode_by_triton(vectors, dtype, content)
        return content
    numbers, found = scale_rows(vectors, dtype)
    content[:, :SCALE_BYTES] = found.view(torch.uint8).view(-1, SCALE_BYTES)
    content[:, SCALE_BYTES:].view(dtype).copy_(numbers)
    return content


def decode_rows(
    content: UInt8[Tensor, "n bytes"], dim: int, dtype: torch.dtype
) -> Float32[Tensor, "n dim"]:
    """Vectors from what `encode_rows` returned."""
    kernels = _kernels(content.shape[0] * dim)
    if kernels is not None and is_plain(content) and content.is_contiguous():
        vectors = torch.empty(content.shape[0], dim)
        kernels.decode(array(content), dtype.itemsize, array(vectors))
        return vectors
    if content.is_contiguous() and _uses_triton(content, dim, torch.uint8):
        from outsize.kernels.wire.scaled_bytes_triton import decode_by_triton

        return decode_by_triton(content, dim, dtype)
    scales = content[:, :SCALE_BYTES].reshape(-1).view(torch.float32)
    return unscale_rows(content[:, SCALE_BYTES:].view(dtype), scales)


def round_rows(vectors: Float32[Tensor, "n dim"], dtype: torch.dtype) -> Float32[Tensor, "n dim"]:
    """Vectors as `decode_rows` returns them for what `encode_rows` wrote."""
    vectors = vectors.contiguous()
    kernels = _kernels(vectors.numel())
    if kernels is not None and is_plain_float(vectors):
        out = torch.empty_like(vectors)
        kernels.round_trip(array(vectors), float(torch.iinfo(dtype).max), array(out))
        return out
    if _uses_triton(vectors, vectors.shape[1]):
        from outsize.kernels.wire.scaled_bytes_triton import round_by_triton

        return round_by_triton(vectors, dtype)
    return unscale_rows(*scale_rows(vectors, dtype))


def _uses_triton(tensor: Tensor, dim: int, dtype: torch.dtype = torch.float32) -> bool:
    return tensor.dtype == dtype and 0 < dim <= _MOST_COLUMNS and uses_triton(tensor)


def _kernels(num_numbers: int) -> Any:
    if not is_worthwhile(num_numbers, _LEAST_NUMBERS):
        return None
    return compiled("wire.scaled_bytes_numba")
