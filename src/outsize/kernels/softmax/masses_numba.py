"""The mass of each block of logits, in one pass over a tile that a product has just written.

The pass finds the largest logit of each query in the tile, and per block the sum of
exp(logit − largest), by vector instructions: the largest by comparing integers, which have the
order of floats, and exp by a polynomial with a relative error of 2⁻²³. A term below exp(−87) of the
largest counts as 0: draws resolve 2⁻⁵⁰ of all mass.
"""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import float32, int32, uint64

from outsize.kernels.compiled import kernel

_LOWEST = float32(-3.4028235e38)
_SMALLEST = float32(-87.0)  # exp of less is 0: beside a term of 1, it does not count
_PER_BIT = float32(1.4426950408889634)  # 1 / ln 2
_BIT_HIGH, _BIT_LOW = float32(0.693359375), float32(-2.12194440e-4)  # ln 2, in two parts
_ROUND = float32(12582912.0)  # 1.5 · 2²³: a float beside it is rounded to an integer
_ROUND_BITS = int32(0x4B400000)
BLOCK = uint64(32)  # items; loops over a block are unrolled


@numba.njit(forceinline=True)
@no_type_check
def _ordered(value):
    """An integer that is larger for a larger float, and largest for NaN; its own inverse."""
    bits = float32(value).view(int32)
    return int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))


@numba.njit(forceinline=True, fastmath={"contract"})
@no_type_check
def _exp(x):
    """exp(x) for x ≤ 80, by 2ⁿ · a polynomial on ± ½ ln 2; 0 below −87, NaN for NaN."""
    shifted = x * _PER_BIT + _ROUND
    n = shifted - _ROUND
    r = (x - n * _BIT_HIGH) - n * _BIT_LOW
    p = float32(1.984127e-4)
    p = p * r + float32(1.3888889e-3)
    p = p * r + float32(8.3333333e-3)
    p = p * r + float32(4.1666667e-2)
    p = p * r + float32(0.16666667)
    p = p * r + float32(0.5)
    p = p * r + float32(1.0)
    p = p * r + float32(1.0)
    power = int32((float32(shifted).view(int32) - _ROUND_BITS + 127) << 23)
    return float32(0.0) if x < _SMALLEST else p * power.view(float32)


@numba.njit(forceinline=True)
@no_type_check
def _largest(logits):
    """The largest logit, NaN if there is one; finite where all are −inf."""
    best = int32(-0x80000000)
    for k in range(len(logits)):
        best = max(best, _ordered(logits[k]))
    peak = int32(best ^ ((best >> 31) & 0x7FFFFFFF)).view(float32)
    return _LOWEST if peak < _LOWEST else peak


@numba.njit(forceinline=True, fastmath={"reassoc"})
@no_type_check
def _sum(values, begin, num):
    total = float32(0.0)
    for k in range(num):
        total += values[begin + k]
    return total


@kernel("void(int64, int64, float32[:, ::1], uint64, float32[:, ::1], float32[:, ::1])")
@no_type_check
def add_tile(part, parts, logits, first, sums, peaks):
    """The largest logit of each query of a tile, and Σ exp(logit − largest) of each block.

    Args:
        part: Which part of the queries to do.
        parts: Number of parts.
        logits: One line per query; overwritten by exp(logit − largest).
        first: The first block of the tile, of 32 items each.
        sums: The sum of each block of each query (output).
        peaks: The largest logit of the tile, at each of its blocks (output).
    """
    n, width = logits.shape
    num_full, num_rest = uint64(width) // BLOCK, uint64(width) % BLOCK
    for q in range(n * part // parts, n * (part + 1) // parts):
        line = logits[q]
        peak = _largest(line)
        for k in range(width):
            line[k] = _exp(line[k] - peak)
        for b in range(num_full):
            sums[q, first + b] = _sum(line, b * BLOCK, BLOCK)
        if num_rest:
            sums[q, first + num_full] = _sum(line, num_full * BLOCK, num_rest)
        peaks[q, first : first + num_full + (num_rest > 0)] = peak


@kernel("void(int64, int64, float32[:, ::1], float32[::1])")
@no_type_check
def exponentiate(part, parts, logits, subtracted):
    """Write exp(logit − subtracted) over the logits, with one number to subtract per line.

    No difference may exceed 80.
    """
    n, width = logits.shape
    for q in range(n * part // parts, n * (part + 1) // parts):
        line, less = logits[q], subtracted[q]
        for k in range(width):
            line[k] = _exp(line[k] - less)
