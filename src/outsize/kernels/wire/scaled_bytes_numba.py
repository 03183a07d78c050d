"""`scaled_bytes` in one pass over the vectors; whole numbers are little-endian, as torch's."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numpy import float32, int8, int16, rint, uint8, uint16, uint32

from outsize.kernels.compiled import kernel


@kernel("void(float32[:, ::1], int64, float32, uint8[:, ::1])")
@no_type_check
def encode(vectors, width, largest, content):
    """Write a scale and rounded numbers of `width` bytes for each vector."""
    num, dim = vectors.shape
    smallest = float32(1.1754943508222875e-38)
    scales = np.empty(1, float32)  # one, whose bits can be read
    bits = scales.view(uint32)
    for i in range(num):
        peak = float32(0.0)
        for j in range(dim):
            peak = max(peak, abs(vectors[i, j]))
        scale = peak / largest
        scales[0] = scale
        word = bits[0]
        for k in range(4):
            content[i, k] = uint8((word >> uint32(8 * k)) & uint32(0xFF))
        divisor = max(scale, smallest)
        if width == 1:
            for j in range(dim):
                number = rint(vectors[i, j] / divisor)
                content[i, 4 + j] = uint8(int8(min(max(number, -largest), largest)))
        else:
            for j in range(dim):
                number = rint(vectors[i, j] / divisor)
                value = uint16(int16(min(max(number, -largest), largest)))
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
