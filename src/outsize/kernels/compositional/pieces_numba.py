"""Vectors that are concatenated from pieces of an array, or sums of pieces.

A *source* gives every column of a vector one piece: a pointer that is stored, or a hash of the id.
The pieces of all sources of a column are added. Where pieces begin is found in blocks of ids, so
that it is still in the first cache when the pieces are read.
"""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np
from numpy import float32, int64, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.compositional.starts_numba import find_starts
from outsize.kernels.memory_numba import prefetch

_LARGE = 1 << 17  # numbers; smaller arrays stay in the second cache


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


@numba.njit
@no_type_check
def _copy_circular(array, start, out, place, width):
    """Copy a piece of a circular array; that of a complement is multiplied by −1."""
    sign = float32(1.0)
    if start < 0:
        start, sign = ~start, float32(-1.0)
    for k in range(width):
        while start >= len(array):
            start -= len(array)
        out[place + k] = sign * array[start]
        start += 1


@numba.njit
@no_type_check
def _add_circular(array, place, out, start, width):
    """Add to a piece of a circular array; to that of a complement, multiplied by −1."""
    sign = float32(1.0)
    if start < 0:
        start, sign = ~start, float32(-1.0)
    for k in range(width):
        while start >= len(out):
            start -= len(out)
        out[start] += sign * array[place + k]
        start += 1


@numba.njit(forceinline=True)
@no_type_check
def _write(array, starts, edges, equal, out):
    """Write the vectors of a block; `equal` is the width of all columns, or 0 if they differ."""
    columns, block = uint64(len(edges) - 1), uint64(starts.shape[1])
    is_sum = uint64(len(starts)) > columns
    found, lines = starts.reshape(-1), out.reshape(-1)
    line = uint64(0)
    for i in range(uint64(len(out))):
        place = i
        for j in range(columns):
            width = equal if equal else uint64(edges[j + uint64(1)] - edges[j])
            start = int64(found[place])
            if is_sum:
                other = uint64(found[place + columns * block])
                _copy_sum(array, uint64(start), other, lines, line, width)
            elif 0 <= start <= len(array) - int64(width):
                _copy(array, uint64(start), lines, line, width)
            else:
                _copy_circular(array, start, lines, int64(line), int64(width))
            line += width
            place += block


@numba.njit(forceinline=True)
@no_type_check
def _sum(gradients, starts, edges, equal, total):
    """Add the gradients of a block; `equal` as in `_write`."""
    columns, block = uint64(len(edges) - 1), uint64(starts.shape[1])
    is_sum = uint64(len(starts)) > columns
    found, lines = starts.reshape(-1), gradients.reshape(-1)
    line = uint64(0)
    for i in range(uint64(len(gradients))):
        place = i
        for j in range(columns):
            width = equal if equal else uint64(edges[j + uint64(1)] - edges[j])
            start = int64(found[place])
            if is_sum:
                _add(lines, line, total, uint64(start), width)
                _add(lines, line, total, uint64(found[place + columns * block]), width)
            elif 0 <= start <= len(total) - int64(width):
                _add(lines, line, total, uint64(start), width)
            else:
                _add_circular(lines, int64(line), total, start, int64(width))
            line += width
            place += block


@numba.njit(forceinline=True)
@no_type_check
def _equal_width(edges):
    width = edges[1]
    for j in range(1, len(edges) - 1):
        if edges[j + 1] - edges[j] != width:
            return 0
    return width


@numba.njit
@no_type_check
def _fetch(array, starts, num):
    """Prefetch the pieces of a block of ids, if the array is too large for the nearest caches."""
    if len(array) >= _LARGE:
        for line in starts:
            for i in range(num):
                prefetch(array, int64(max(line[i], ~line[i])))


@numba.njit
@no_type_check
def _write_block(array, starts, edges, out):
    """`_write`, compiled for widths that are frequent."""
    _fetch(array, starts, len(out))
    equal = _equal_width(edges)
    if equal == 4:
        _write(array, starts, edges, uint64(4), out)
    elif equal == 8:
        _write(array, starts, edges, uint64(8), out)
    elif equal == 16:
        _write(array, starts, edges, uint64(16), out)
    else:
        _write(array, starts, edges, uint64(equal), out)


@numba.njit
@no_type_check
def _sum_block(gradients, starts, edges, total):
    """`_sum`, compiled for widths that are frequent."""
    _fetch(total, starts, len(gradients))
    equal = _equal_width(edges)
    if equal == 4:
        _sum(gradients, starts, edges, uint64(4), total)
    elif equal == 8:
        _sum(gradients, starts, edges, uint64(8), total)
    elif equal == 16:
        _sum(gradients, starts, edges, uint64(16), total)
    else:
        _sum(gradients, starts, edges, uint64(equal), total)


@kernel("void(int64, int64, float32[::1], int32[:, :, ::1], int64[::1], float32[:, ::1])")
@no_type_check
def compose(part, parts, array, starts, edges, out):
    """Column j of a vector is the piece at its start j, plus that of the second source, if any.

    Pieces wrap around at the end of the array. A start that is a complement stands for minus one
    times its piece.
    """
    num_blocks, _, block = starts.shape
    for b in range(num_blocks * part // parts, num_blocks * (part + 1) // parts):
        _write_block(array, starts[b], edges, out[b * block : (b + 1) * block])


@kernel(
    "void(int64, int64, float32[::1], int64[::1], uint8[::1], uint8[::1], int64[:, ::1],"
    " int64[:, ::1], boolean, int64[::1], int32[:, :, ::1], float32[:, ::1])"
)
@no_type_check
def find_and_compose(
    part, parts, array, ids, packed, packed_2, words, layouts, signed, edges, starts, out
):
    """Find where the pieces of ids begin, and put them together.

    Args:
        part: Which part of the blocks to do.
        parts: Number of parts.
        array: The array of all pieces.
        ids: The ids.
        packed: Stored pointers of the first source.
        packed_2: Stored pointers of the second.
        words: Hash functions of all columns, source after source.
        layouts: Per source: bytes per stored pointer (0 if hashed), pointers per line, the first
            to use, hash buckets, stride, and the start of each column.
        signed: Whether hashes give signs as well.
        edges: Edges of the columns of a vector.
        starts: Per block, source and column: where the piece of each id begins (output).
        out: The vectors (output).
    """
    num_blocks, _, block = starts.shape
    columns = len(edges) - 1
    last = min(len(ids), num_blocks * (part + 1) // parts * block)
    mixed = np.empty(block, uint64)
    for b in range(num_blocks * part // parts, num_blocks * (part + 1) // parts):
        begin, stop = b * block, min((b + 1) * block, last)
        found = starts[b]
        find_starts(ids, begin, stop, last, packed, words, layouts[0], signed, mixed, found)
        if len(layouts) > 1:
            layout, rest = layouts[1], found[columns:]
            find_starts(
                ids, begin, stop, last, packed_2, words[columns:], layout, False, mixed, rest
            )
        _write_block(array, found, edges, out[begin:stop])


@kernel("void(int64, int64, float32[:, ::1], int32[:, :, ::1], int64[::1], float32[:, ::1])")
@no_type_check
def add_pieces(part, parts, gradients, starts, edges, totals):
    """Add gradients to the pieces that made a vector.

    The blocks are cut into as many chunks as `totals` has lines, each with a sum of its own, so
    that the result does not depend on the number of threads.
    """
    num_blocks, _, block = starts.shape
    num_chunks = len(totals)
    for chunk in range(part, num_chunks, parts):
        total = totals[chunk]
        total[:] = float32(0.0)
        for b in range(num_blocks * chunk // num_chunks, num_blocks * (chunk + 1) // num_chunks):
            _sum_block(gradients[b * block : (b + 1) * block], starts[b], edges, total)


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
