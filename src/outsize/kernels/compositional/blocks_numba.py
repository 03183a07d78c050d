"""Blocks of vectors, column by column: written from pieces, or added to pieces.

A block of vectors, and where its pieces begin, stay in the first cache.
"""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import float32, int64, uint32

from outsize.kernels.compositional.lanes_numba import add, copy, copy_sum

PLUS = float32(1.0)


@numba.njit(forceinline=True)
@no_type_check
def copy_piece(array, start, sign, out, place, width):
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
def add_piece(array, start, sign, out, place, width):
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
        copy_piece(array, int64(starts[i]), PLUS, out, place, width)
        place += dim


@numba.njit
@no_type_check
def _write_signed(array, starts, num, width, dim, out, place):
    """Write one column of a block of vectors, from one piece each."""
    for i in range(num):
        start, sign = _place_and_sign(starts[i])
        if start <= len(array) - width:
            copy_piece(array, start, sign, out, place, width)
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
        add_piece(gradients, place, PLUS, total, int64(starts[i]), width)
        place += dim


@numba.njit(forceinline=True)
@no_type_check
def _add_twice(gradients, place, starts, others, num, width, dim, total):
    """Add one column of a block of gradients to two plain pieces of each vector."""
    for i in range(num):
        add_piece(gradients, place, PLUS, total, int64(starts[i]), width)
        add_piece(gradients, place, PLUS, total, int64(others[i]), width)
        place += dim


@numba.njit
@no_type_check
def _add_signed(gradients, place, starts, num, width, dim, total):
    """Add one column of a block of gradients to one piece of each vector."""
    for i in range(num):
        start, sign = _place_and_sign(starts[i])
        if start <= len(total) - width:
            add_piece(gradients, place, sign, total, start, width)
        else:
            _add_circular(gradients, place, sign, total, start, width)
        place += dim


@numba.njit
@no_type_check
def write_block(array, starts, num, edges, out, place):
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
def add_block(gradients, place, starts, num, edges, total):
    """Add a block of gradients from `place` on; compiled for widths that are frequent."""
    columns, dim = len(edges) - 1, edges[-1]
    for j in range(columns):
        width, first, line = edges[j + 1] - edges[j], place + edges[j], starts[j]
        if len(starts) > columns:
            others = starts[columns + j]
            if width == 4:
                _add_twice(gradients, first, line, others, num, 4, dim, total)
            elif width == 8:
                _add_twice(gradients, first, line, others, num, 8, dim, total)
            elif width == 16:
                _add_twice(gradients, first, line, others, num, 16, dim, total)
            else:
                _add_twice(gradients, first, line, others, num, width, dim, total)
        elif not _are_plain(line, num, len(total) - width):
            _add_signed(gradients, first, line, num, width, dim, total)
        elif width == 4:
            _add_column(gradients, first, line, num, 4, dim, total)
        elif width == 8:
            _add_column(gradients, first, line, num, 8, dim, total)
        elif width == 16:
            _add_column(gradients, first, line, num, 16, dim, total)
        else:
            _add_column(gradients, first, line, num, width, dim, total)
