"""Vectors that are concatenated from pieces of an array, or sums of pieces.

A *source* gives every column of a vector one piece: a pointer that is stored, or a hash of the id.
The pieces of all sources of a column are added.
"""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import float32, int64, uint64

from outsize.kernels.compiled import kernel

HASHED = 0  # a source of hashes; otherwise the bytes of a stored pointer


@numba.njit(nogil=True)
@no_type_check
def _mix(word):
    """`outsize.hashing.mix_bits`."""
    word = (word ^ (word >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> uint64(27))) * uint64(0x94D049BB133111EB)
    return word ^ (word >> uint64(31))


@numba.njit(nogil=True)
@no_type_check
def _hash(mixed, words, column, first):
    """32 bits of a multiply-shift hash of an id that is mixed already."""
    low = mixed & uint64(0xFFFFFFFF)
    high = mixed >> uint64(32)
    a = uint64(words[column, first])
    b = uint64(words[column, first + 1])
    c = uint64(words[column, first + 2])
    return (a * low + b * high + c) >> uint64(32)


@kernel(
    "void(int64, int64, int64[::1], int64[::1], int64, int64, uint8[:, ::1], uint16[:, ::1],"
    " uint32[:, ::1], int64[:, ::1], int64[:, ::1], int64, int64[::1], int64, int32[:, ::1])"
)
@no_type_check
def find_pieces(
    part,
    parts,
    ids,
    lines,
    kind,
    first_pointer,
    pointers_8,
    pointers_16,
    pointers_32,
    pointers_64,
    words,
    num_buckets,
    column_starts,
    stride,
    starts,
):
    """Where the pieces of one source begin: `starts[i, j]` = pointer · stride + column_starts[j].

    `kind` is the number of bytes of a stored pointer, read at line `lines[i]` of the array of that
    width, or `HASHED`. Buckets number at most 2²⁴.
    """
    n = starts.shape[0]
    columns = starts.shape[1]
    for i in range(n * part // parts, n * (part + 1) // parts):
        mixed = _mix(uint64(ids[i])) if kind == HASHED else uint64(0)
        line = uint64(lines[i]) if kind != HASHED else uint64(0)
        for j in range(columns):
            column = uint64(first_pointer + j)
            if kind == HASHED:
                pointer = int64((_hash(mixed, words, j, 0) * uint64(num_buckets)) >> uint64(32))
            elif kind == 1:
                pointer = int64(pointers_8[line, column])
            elif kind == 2:
                pointer = int64(pointers_16[line, column])
            elif kind == 4:
                pointer = int64(pointers_32[line, column])
            else:
                pointer = pointers_64[line, column]
            starts[i, j] = pointer * stride + column_starts[j]


@kernel("void(int64, int64, int64[::1], int64[:, ::1], int32[:, ::1])")
@no_type_check
def find_signs(part, parts, ids, words, signs):
    """`outsize.hashing.hash_signs`."""
    n = signs.shape[0]
    for i in range(n * part // parts, n * (part + 1) // parts):
        mixed = _mix(uint64(ids[i]))
        for j in range(signs.shape[1]):
            signs[i, j] = 1 - 2 * int64(_hash(mixed, words, j, 6) >> uint64(31))


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
    for i in range(n * part // parts, n * (part + 1) // parts):
        for j in range(columns):
            begin = edges[j]
            width = edges[j + 1] - begin
            start = int64(first[i, j])
            if is_sum:
                other = int64(second[i, j])
                for k in range(width):
                    out[i, begin + k] = array[uint64(start + k)] + array[uint64(other + k)]
            elif start + width <= size:
                for k in range(width):
                    out[i, begin + k] = array[uint64(start + k)]
            else:
                for k in range(width):
                    out[i, begin + k] = array[uint64((start + k) % size)]
            if is_signed and signs[i, j] < 0:
                for k in range(width):
                    out[i, begin + k] = -out[i, begin + k]


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
    for chunk in range(part, num_chunks, parts):
        for k in range(size):
            totals[chunk, k] = 0.0
        for i in range(n * chunk // num_chunks, n * (chunk + 1) // num_chunks):
            for j in range(columns):
                begin = edges[j]
                width = edges[j + 1] - begin
                sign = float32(signs[i, j]) if is_signed else float32(1.0)
                start = int64(first[i, j])
                if start + width <= size:
                    for k in range(width):
                        totals[chunk, uint64(start + k)] += sign * gradients[i, begin + k]
                else:
                    for k in range(width):
                        place = uint64((start + k) % size)
                        totals[chunk, place] += sign * gradients[i, begin + k]
                if is_sum:
                    other = int64(second[i, j])
                    for k in range(width):
                        totals[chunk, uint64(other + k)] += gradients[i, begin + k]


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
