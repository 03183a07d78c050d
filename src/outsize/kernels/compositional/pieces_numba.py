"""Vectors that are concatenated from pieces of an array, or sums of pieces.

A *source* gives every column of a vector one piece: a pointer that is stored, or a hash of the id.
The pieces of all sources of a column are added. Vectors are made in blocks, column by column: a
block of vectors, and where its pieces begin, stay in the first cache.
"""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np
from numpy import float32, int64, uint32, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.compositional.lanes_numba import add, copy, copy_sum, unowned
from outsize.kernels.compositional.starts_numba import find_starts

_SLICE = 1 << 10  # numbers that are summed over all chunks, while they are in the first cache
_PLUS = float32(1.0)


@numba.njit(forceinline=True)
@no_type_check
def _copy(array, start, sign, out, place, width):
    """Copy a piece, times a sign."""
    k = 0
    while k + 16 <= width:
        copy(16, array, start + k, sign, out, place + k)
        k += 16
    while k + 4 <= width:
        copy(4, array, start + k, sign, out, place + k)
        k += 4
    while k < width:
        copy(1, array, start + k, sign, out, place + k)
        k += 1


@numba.njit(forceinline=True)
@no_type_check
def _copy_sum(array, start, other, out, place, width):
    """Write the sum of two pieces."""
    k = 0
    while k + 16 <= width:
        copy_sum(16, array, start + k, other + k, out, place + k)
        k += 16
    while k + 4 <= width:
        copy_sum(4, array, start + k, other + k, out, place + k)
        k += 4
    while k < width:
        copy_sum(1, array, start + k, other + k, out, place + k)
        k += 1


@numba.njit(forceinline=True)
@no_type_check
def _add(array, start, sign, out, place, width):
    """Add a piece, times a sign, to another."""
    k = 0
    while k + 16 <= width:
        add(16, array, start + k, sign, out, place + k)
        k += 16
    while k + 4 <= width:
        add(4, array, start + k, sign, out, place + k)
        k += 4
    while k < width:
        add(1, array, start + k, sign, out, place + k)
        k += 1


@numba.njit
@no_type_check
def _copy_circular(array, start, sign, out, place, width):
    """Copy a piece that wraps around at the end of the array."""
    for k in range(width):
        while start >= len(array):
            start -= len(array)
        out[place + k] = sign * array[start]
        start += 1


@numba.njit
@no_type_check
def _add_circular(array, start, sign, out, place, width):
    """Add to a piece that wraps around at the end of the array."""
    for k in range(width):
        while place >= len(out):
            place -= len(out)
        out[place] += sign * array[start + k]
        place += 1


@numba.njit(forceinline=True)
@no_type_check
def _are_plain(starts, num, last):
    """Whether no piece of a column has a sign of −1 or wraps around."""
    greatest = uint32(0)
    for i in range(num):
        greatest = max(greatest, uint32(starts[i]))
    return int64(greatest) <= last


@numba.njit(forceinline=True)
@no_type_check
def _place_and_sign(start):
    """Where a piece begins, and its sign; that of a complement is −1."""
    flip = int64(start) >> 63
    return int64(start) ^ flip, float32(1 | flip)


@numba.njit(forceinline=True)
@no_type_check
def _write_column(array, starts, num, width, dim, out, place):
    """Write one column of a block of vectors, from one plain piece each."""
    for i in range(num):
        _copy(array, int64(starts[i]), _PLUS, out, place, width)
        place += dim


@numba.njit
@no_type_check
def _write_signed(array, starts, num, width, dim, out, place):
    """Write one column of a block of vectors, from one piece each."""
    for i in range(num):
        start, sign = _place_and_sign(starts[i])
        if start <= len(array) - width:
            _copy(array, start, sign, out, place, width)
        else:
            _copy_circular(array, start, sign, out, place, width)
        place += dim


@numba.njit(forceinline=True)
@no_type_check
def _write_sums(array, starts, others, num, width, dim, out, place):
    """Write one column of a block of vectors, from two pieces each."""
    for i in range(num):
        _copy_sum(array, int64(starts[i]), int64(others[i]), out, place, width)
        place += dim


@numba.njit(forceinline=True)
@no_type_check
def _add_column(gradients, place, starts, num, width, dim, total):
    """Add one column of a block of gradients to one plain piece of each vector."""
    for i in range(num):
        _add(gradients, place, _PLUS, total, int64(starts[i]), width)
        place += dim


@numba.njit
@no_type_check
def _add_signed(gradients, place, starts, num, width, dim, total):
    """Add one column of a block of gradients to one piece of each vector."""
    for i in range(num):
        start, sign = _place_and_sign(starts[i])
        if start <= len(total) - width:
            _add(gradients, place, sign, total, start, width)
        else:
            _add_circular(gradients, place, sign, total, start, width)
        place += dim


@numba.njit
@no_type_check
def _write_block(array, starts, num, edges, out, place):
    """Write a block of vectors to `out` from `place` on; compiled for widths that are frequent."""
    columns, dim = len(edges) - 1, edges[-1]
    for j in range(columns):
        width, first, line = edges[j + 1] - edges[j], place + edges[j], starts[j]
        if len(starts) > columns:
            others = starts[columns + j]
            if width == 4:
                _write_sums(array, line, others, num, 4, dim, out, first)
            elif width == 8:
                _write_sums(array, line, others, num, 8, dim, out, first)
            elif width == 16:
                _write_sums(array, line, others, num, 16, dim, out, first)
            else:
                _write_sums(array, line, others, num, width, dim, out, first)
        elif not _are_plain(line, num, len(array) - width):
            _write_signed(array, line, num, width, dim, out, first)
        elif width == 4:
            _write_column(array, line, num, 4, dim, out, first)
        elif width == 8:
            _write_column(array, line, num, 8, dim, out, first)
        elif width == 16:
            _write_column(array, line, num, 16, dim, out, first)
        else:
            _write_column(array, line, num, width, dim, out, first)


@numba.njit
@no_type_check
def _add_block(gradients, place, starts, num, edges, total):
    """Add a block of gradients from `place` on; compiled for widths that are frequent."""
    columns, dim = len(edges) - 1, edges[-1]
    for piece in range(len(starts)):
        j = piece % columns
        width, first, line = edges[j + 1] - edges[j], place + edges[j], starts[piece]
        if not _are_plain(line, num, len(total) - width):
            _add_signed(gradients, first, line, num, width, dim, total)
        elif width == 4:
            _add_column(gradients, first, line, num, 4, dim, total)
        elif width == 8:
            _add_column(gradients, first, line, num, 8, dim, total)
        elif width == 16:
            _add_column(gradients, first, line, num, 16, dim, total)
        else:
            _add_column(gradients, first, line, num, width, dim, total)


@kernel("void(int64, int64, float32[::1], int32[:, :, ::1], int64[::1], float32[:, ::1])")
@no_type_check
def compose(part, parts, array, starts, edges, out):
    """Column j of a vector is the piece at its start j, plus that of the second source, if any.

    Pieces wrap around at the end of the array, if there is one source. A start that is a complement
    stands for minus one times its piece.
    """
    array, starts, edges, out = unowned(array), unowned(starts), unowned(edges), unowned(out)
    num_blocks, _, block = starts.shape
    flat = out.reshape(-1)
    for b in range(num_blocks * part // parts, num_blocks * (part + 1) // parts):
        num = min(block, len(out) - b * block)
        _write_block(array, starts[b], num, edges, flat, b * block * edges[-1])


@kernel(
    "void(int64, int64, float32[::1], int64[::1], int64[::1], uint8[::1], uint8[::1],"
    " int64[:, ::1], int64[:, ::1], int64[:, ::1], boolean, int32[:, :, ::1], int64[::1],"
    " float32[:, ::1])"
)
@no_type_check
def find_and_compose(
    part,
    parts,
    array,
    ids,
    lines,
    packed,
    packed_2,
    words,
    words_2,
    layouts,
    signed,
    starts,
    edges,
    out,
):
    """Find where the pieces of ids begin, and put them together.

    Args:
        part: Which part of the blocks to do.
        parts: Number of parts.
        array: The array of all pieces.
        ids: The ids.
        lines: For each id, the line of its stored pointers.
        packed: Stored pointers of the first source; 8 bytes or more.
        packed_2: Stored pointers of the second.
        words: Hash functions of all columns of the first source.
        words_2: Those of the second.
        layouts: Per source: bits per stored pointer (0 if hashed), pointers per line, the first
            to use, what to add to ids before they are hashed, hash buckets, stride, and the start
            of each column.
        signed: Whether hashes give signs as well.
        starts: Per block, source and column: where the piece of each id begins (output).
        edges: Edges of the columns of a vector.
        out: The vectors (output).
    """
    array, ids, lines, starts = unowned(array), unowned(ids), unowned(lines), unowned(starts)
    packed, packed_2 = unowned(packed), unowned(packed_2)
    words, words_2 = unowned(words), unowned(words_2)
    layouts, edges, out = unowned(layouts), unowned(edges), unowned(out)
    num_blocks, _, block = starts.shape
    columns, flat = len(edges) - 1, out.reshape(-1)
    scratch = np.empty(block, uint64)
    for b in range(num_blocks * part // parts, num_blocks * (part + 1) // parts):
        begin, stop = b * block, min((b + 1) * block, len(ids))
        found = starts[b]
        find_starts(
            ids, lines, begin, stop, packed, words, layouts[0], signed, scratch, found[:columns]
        )
        if len(layouts) > 1:
            layout, rest = layouts[1], found[columns:]
            find_starts(ids, lines, begin, stop, packed_2, words_2, layout, False, scratch, rest)
        _write_block(array, found, stop - begin, edges, flat, begin * edges[-1])


@kernel("void(int64, int64, float32[:, ::1], int32[:, :, ::1], int64[::1], float32[:, ::1])")
@no_type_check
def add_pieces(part, parts, gradients, starts, edges, totals):
    """Add gradients to the pieces that made a vector.

    The blocks are cut into as many chunks as `totals` has lines, each with a sum of its own, so
    that the result does not depend on the number of threads.
    """
    gradients, starts, edges = unowned(gradients), unowned(starts), unowned(edges)
    totals = unowned(totals)
    num_blocks, _, block = starts.shape
    num_chunks, flat = len(totals), gradients.reshape(-1)
    for chunk in range(part, num_chunks, parts):
        total = totals[chunk]
        total[:] = float32(0.0)
        for b in range(num_blocks * chunk // num_chunks, num_blocks * (chunk + 1) // num_chunks):
            num = min(block, len(gradients) - b * block)
            _add_block(flat, b * block * edges[-1], starts[b], num, edges, total)


@kernel("void(int64, int64, float32[:, ::1], float32[::1])")
@no_type_check
def sum_chunks(part, parts, totals, out):
    """Add the sums of all chunks, in order."""
    num_chunks, size = totals.shape
    flat = totals.reshape(-1)
    stop = size * (part + 1) // parts
    for k in range(size * part // parts, stop, _SLICE):
        num = min(_SLICE, stop - k)
        _copy(flat, k, _PLUS, out, k, num)
        for chunk in range(1, num_chunks):
            _add(flat, chunk * size + k, _PLUS, out, k, num)
