"""`scaled_bytes` in one pass over the vectors; whole numbers are little-endian, as torch's."""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np
from numpy import float32, int8, int16, int32, rint, uint8, uint16, uint32

from outsize.kernels.compiled import kernel

_SMALLEST = float32(1.1754943508222875e-38)


@numba.njit(forceinline=True)
@no_type_check
def _scale(vector, largest):
    """The largest magnitude over the largest number; NaN if there is one.

    Magnitudes have the order of their bits, whose maximum is found by vector instructions.
    """
    peak = int32(0)
    for j in range(len(vector)):
        peak = max(peak, int32(float32(vector[j]).view(int32) & 0x7FFFFFFF))
    return int32(peak).view(float32) / largest


@numba.njit(forceinline=True)
@no_type_check
def _rounded(value, divisor, largest):
    return min(max(rint(value / divisor), -largest), largest)


@kernel("void(float32[:, ::1], int64, float32, uint8[:, ::1])")
@no_type_check
def encode(vectors, width, largest, content):
    """Write a scale and rounded numbers of `width` bytes for each vector."""
    num, dim = vectors.shape
    for i in range(num):
        vector = vectors[i]
        scale = _scale(vector, largest)
        word = float32(scale).view(uint32)
        for k in range(4):
            content[i, k] = uint8((word >> uint32(8 * k)) & uint32(0xFF))
        divisor = max(scale, _SMALLEST)
        if width == 1:
            for j in range(dim):
                content[i, 4 + j] = uint8(int8(_rounded(vector[j], divisor, largest)))
        else:
            for j in range(dim):
                value = uint16(int16(_rounded(vector[j], divisor, largest)))
                content[i, 4 + 2 * j] = uint8(value & uint16(0xFF))
                content[i, 5 + 2 * j] = uint8(value >> uint16(8))


@kernel("void(uint8[:, ::1], int64, float32[:, ::1])")
@no_type_check
def decode(content, width, vectors):
    """Numbers of `width` bytes times the scale of their vector."""
    num, dim = vectors.shape
    bits = np.empty(1, uint32)
    scales = bits.view(float32)
    for i in range(num):
        word = uint32(0)
        for k in range(4):
            word |= uint32(content[i, k]) << uint32(8 * k)
        bits[0] = word
        scale = scales[0]
        if width == 1:
            for j in range(dim):
                vectors[i, j] = float32(int8(content[i, 4 + j])) * scale
        else:
            for j in range(dim):
                upper = uint16(content[i, 5 + 2 * j]) << uint16(8)
                vectors[i, j] = float32(int16(upper | uint16(content[i, 4 + 2 * j]))) * scale


@kernel("void(float32[:, ::1], float32, float32[:, ::1])")
@no_type_check
def round_trip(vectors, largest, out):
    """What `decode` returns for what `encode` wrote, without the bytes between."""
    num, dim = vectors.shape
    for i in range(num):
        vector = vectors[i]
        scale = _scale(vector, largest)
        divisor = max(scale, _SMALLEST)
        for j in range(dim):
            out[i, j] = float32(int32(_rounded(vector[j], divisor, largest))) * scale
