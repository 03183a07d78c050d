"""Vectors that are concatenated from pieces of an array, or sums of pieces.

A *source* gives every column of a vector one piece: a pointer that is stored, or a hash of the id.
The pieces of all sources of a column are added.
"""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import float32, int64, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.memory_numba import prefetch

_AHEAD = 16  # pointers that are prefetched


@numba.njit(forceinline=True)
@no_type_check
def _mix(word):
    """`outsize.hashing.mix_bits`."""
    word = (word ^ (word >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> uint64(27))) * uint64(0x94D049BB133111EB)
    return word ^ (word >> uint64(31))


@numba.njit(forceinline=True)
@no_type_check
def _hash(mixed, words, column, first):
    """32 bits of a multiply-shift hash of an id that is mixed already."""
    low = mixed & uint64(0xFFFFFFFF)
    high = mixed >> uint64(32)
    a = uint64(words[column, first])
    b = uint64(words[column, first + uint64(1)])
    c = uint64(words[column, first + uint64(2)])
    return (a * low + b * high + c) >> uint64(32)


@kernel("void(int64, int64, int64[::1], int64[:, ::1], int64, int64[::1], int64, int32[:, ::1])")
@no_type_check
def find_hashed(part, parts, ids, words, num_buckets, column_starts, stride, starts):
    """Where pieces begin: `starts[i, j]` = h_j(ids[i]) · stride + column_starts[j].

    Buckets number at most 2²⁴.
    """
    n = starts.shape[0]
    columns = uint64(starts.shape[1])
    buckets = uint64(num_buckets)
    for i in range(n * part // parts, n * (part + 1) // parts):
        mixed = _mix(uint64(ids[uint64(i)]))
        for j in range(columns):
            pointer = int64((_hash(mixed, words, j, uint64(0)) * buckets) >> uint64(32))
            starts[uint64(i), j] = pointer * stride + column_starts[j]


@numba.njit(forceinline=True)
@no_type_check
def _point(part, parts, lines, pointers, first, column_starts, stride, starts):
    n = starts.shape[0]
    columns = uint64(starts.shape[1])
    offset = uint64(first)
    width = pointers.shape[1]
    stop = n * (part + 1) // parts
    for i in range(n * part // parts, stop):
        if i + _AHEAD < stop:
            prefetch(pointers, lines[uint64(i + _AHEAD)] * width + first)
        line = uint64(lines[uint64(i)])
        for j in range(columns):
            pointer = int64(pointers[line, offset + j])
            starts[uint64(i), j] = pointer * stride + column_starts[j]


@kernel(
    "void(int64, int64, int64[::1], int64, uint8[:, ::1], uint16[:, ::1], uint32[:, ::1],"
    " int64[:, ::1], int64, int64[::1], int64, int32[:, ::1])"
)
@no_type_check
def find_stored(
    part,
    parts,
    lines,
    num_bytes,
    pointers_8,
    pointers_16,
    pointers_32,
    pointers_64,
    first,
    column_starts,
    stride,
    starts,
):
    """Where pieces begin, by stored pointers of 1, 2, 4 or 8 bytes, at `lines`."""
    if num_bytes == 1:
        _point(part, parts, lines, pointers_8, first, column_starts, stride, starts)
    elif num_bytes == 2:
        _point(part, parts, lines, pointers_16, first, column_starts, stride, starts)
    elif num_bytes == 4:
        _point(part, parts, lines, pointers_32, first, column_starts, stride, starts)
    else:
        _point(part, parts, lines, pointers_64, first, column_starts, stride, starts)


@kernel("void(int64, int64, int64[::1], int64[:, ::1], int32[:, ::1])")
@no_type_check
def find_signs(part, parts, ids, words, signs):
    """`outsize.hashing.hash_signs`."""
    n = signs.shape[0]
    for i in range(n * part // parts, n * (part + 1) // parts):
        mixed = _mix(uint64(ids[i]))
        for j in range(signs.shape[1]):
            sign = _hash(mixed, words, uint64(j), uint64(6)) >> uint64(31)
            signs[i, j] = 1 - 2 * int64(sign)


@numba.njit(forceinline=True)
@no_type_check
def _copy(array, start, out, place, width):
    """Copy a piece, by fours where it can: a loop over so few numbers costs more than they do."""
    k = uint64(0)
    while k + uint64(4) <= width:
        a = array[start + k]
        b = array[start + k + uint64(1)]
        c = array[start + k + uint64(2)]
        d = array[start + k + uint64(3)]
        out[place + k] = a
        out[place + k + uint64(1)] = b
        out[place + k + uint64(2)] = c
        out[place + k + uint64(3)] = d
        k += uint64(4)
    while k < width:
        out[place + k] = array[start + k]
        k += uint64(1)


@numba.njit(forceinline=True)
@no_type_check
def _copy_sum(array, start, other, out, place, width):
    """Write the sum of two pieces."""
    k = uint64(0)
    while k + uint64(4) <= width:
        a = array[start + k] + array[other + k]
        b = array[start + k + uint64(1)] + array[other + k + uint64(1)]
        c = array[start + k + uint64(2)] + array[other + k + uint64(2)]
        d = array[start + k + uint64(3)] + array[other + k + uint64(3)]
        out[place + k] = a
        out[place + k + uint64(1)] = b
        out[place + k + uint64(2)] = c
        out[place + k + uint64(3)] = d
        k += uint64(4)
    while k < width:
        out[place + k] = array[start + k] + array[other + k]
        k += uint64(1)


@numba.njit(forceinline=True)
@no_type_check
def _add(array, start, out, place, width):
    """Add a piece to another."""
    k = uint64(0)
    while k + uint64(4) <= width:
        a = out[place + k] + array[start + k]
        b = out[place + k + uint64(1)] + array[start + k + uint64(1)]
        c = out[place + k + uint64(2)] + array[start + k + uint64(2)]
        d = out[place + k + uint64(3)] + array[start + k + uint64(3)]
        out[place + k] = a
        out[place + k + uint64(1)] = b
        out[place + k + uint64(2)] = c
        out[place + k + uint64(3)] = d
        k += uint64(4)
    while k < width:
        out[place + k] += array[start + k]
        k += uint64(1)


@kernel(
    "void(int64, int64, float32[::1], int32[:, ::1], int32[:, ::1], int32[:, ::1], int64[::1],"
    " float32[:, ::1])"
)
@no_type_check
def compose(part, parts, array, first, second, signs, edges, out):
    """Column j of line i is the piece at first[i, j], plus that at second[i, j] if there is any.

    Pieces wrap around at the end of the array. With signs, they are multiplied.
    """
    n = out.shape[0]
    size = len(array)
    columns = first.shape[1]
    is_sum = len(second) > 0
    is_signed = len(signs) > 0
    dim = uint64(out.shape[1])
    lines = out.reshape(-1)
    for i in range(n * part // parts, n * (part + 1) // parts):
        line = uint64(i) * dim
        for j in range(columns):
            begin = uint64(edges[j])
            width = uint64(edges[j + 1]) - begin
            start = uint64(first[uint64(i), uint64(j)])
            if is_sum:
                other = uint64(second[uint64(i), uint64(j)])
                _copy_sum(array, start, other, lines, line + begin, width)
            elif int64(start + width) <= size:
                _copy(array, start, lines, line + begin, width)
            else:
                for k in range(width):
                    lines[line + begin + k] = array[(start + k) % uint64(size)]
            if is_signed and signs[uint64(i), uint64(j)] < 0:
                for k in range(width):
                    lines[line + begin + k] = -lines[line + begin + k]


@kernel(
    "void(int64, int64, float32[:, ::1], int32[:, ::1], int32[:, ::1], int32[:, ::1], int64[::1],"
    " float32[:, ::1])"
)
@no_type_check
def add_pieces(part, parts, gradients, first, second, signs, edges, totals):
    """Add gradients to the pieces that made a vector.

    The vectors are cut into as many chunks as `totals` has lines, each with a sum of its own, so
    that the result does not depend on the number of threads.
    """
    n = gradients.shape[0]
    num_chunks, size = totals.shape
    columns = first.shape[1]
    is_sum = len(second) > 0
    is_signed = len(signs) > 0
    dim = uint64(gradients.shape[1])
    lines = gradients.reshape(-1)
    for chunk in range(part, num_chunks, parts):
        for k in range(size):
            totals[chunk, k] = 0.0
        total = totals[chunk]
        for i in range(n * chunk // num_chunks, n * (chunk + 1) // num_chunks):
            line = uint64(i) * dim
            for j in range(columns):
                begin = uint64(edges[j])
                width = uint64(edges[j + 1]) - begin
                start = uint64(first[uint64(i), uint64(j)])
                if is_signed or int64(start + width) > size:
                    sign = float32(signs[i, j]) if is_signed else float32(1.0)
                    for k in range(width):
                        total[(start + k) % uint64(size)] += sign * lines[line + begin + k]
                else:
                    _add(lines, line + begin, total, start, width)
                if is_sum:
                    _add(lines, line + begin, total, uint64(second[uint64(i), uint64(j)]), width)


@kernel("void(int64, int64, float32[:, ::1], float32[::1])")
@no_type_check
def sum_chunks(part, parts, totals, out):
    """Add the sums of all chunks, in order."""
    num_chunks, size = totals.shape
    first = size * part // parts
    stop = size * (part + 1) // parts
    for k in range(first, stop):
        out[k] = totals[0, k]
    for chunk in range(1, num_chunks):
        for k in range(first, stop):
            out[k] += totals[chunk, k]
