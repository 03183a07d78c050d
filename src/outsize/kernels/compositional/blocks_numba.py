"""Blocks of vectors, column by column: written from pieces, or added to pieces.

A block of vectors, and where its pieces begin, stay in the first cache. Arrays of float32 are given
by their addresses.
"""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import float32, int64, uint32

from outsize.kernels.lines_numba import add_line, add_scaled, copy_line, copy_scaled, put_sum
from outsize.kernels.vectors_numba import load_float, store


@numba.njit
@no_type_check
def _copy_circular(array, size, start, sign, out, width):
    """Copy a piece that wraps around at the end of the array."""
    for k in range(width):
        while start >= size:
            start -= size
        store(out + 4 * k, sign * load_float(array + 4 * start))
        start += 1


@numba.njit
@no_type_check
def _add_circular(array, sign, out, size, place, width):
    """Add to a piece that wraps around at the end of the array."""
    for k in range(width):
        while place >= size:
            place -= size
        value = load_float(out + 4 * place) + sign * load_float(array + 4 * k)
        store(out + 4 * place, value)
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


@no_type_check
def _for_widths(column):
    """A function of a column whose first argument is its width, with code for frequent ones."""
    column = numba.njit(forceinline=True)(column)

    @numba.njit(forceinline=True)
    def chosen(width, *given):
        if width == 4:
            column(4, *given)
        elif width == 8:
            column(8, *given)
        elif width == 16:
            column(16, *given)
        else:
            column(width, *given)

    return chosen


@_for_widths
@no_type_check
def _write_column(width, array, starts, num, dim, out):
    """Write one column of a block of vectors, from one plain piece each."""
    for i in range(num):
        copy_line(array + 4 * int64(starts[i]), out, width)
        out += 4 * dim


@numba.njit
@no_type_check
def _write_signed(array, size, starts, num, width, dim, out):
    """Write one column of a block of vectors, from one piece each."""
    for i in range(num):
        start, sign = _place_and_sign(starts[i])
        if start <= size - width:
            copy_scaled(array + 4 * start, out, width, sign)
        else:
            _copy_circular(array, size, start, sign, out, width)
        out += 4 * dim


@_for_widths
@no_type_check
def _write_sums(width, array, starts, others, num, dim, out):
    """Write one column of a block of vectors, from two pieces each."""
    for i in range(num):
        put_sum(array + 4 * int64(starts[i]), out, width, array + 4 * int64(others[i]))
        out += 4 * dim


@_for_widths
@no_type_check
def _add_column(width, gradients, starts, num, dim, total):
    """Add one column of a block of gradients to one plain piece of each vector."""
    for i in range(num):
        add_line(gradients, total + 4 * int64(starts[i]), width)
        gradients += 4 * dim


@_for_widths
@no_type_check
def _add_twice(width, gradients, starts, others, num, dim, total):
    """Add one column of a block of gradients to two plain pieces of each vector."""
    for i in range(num):
        add_line(gradients, total + 4 * int64(starts[i]), width)
        add_line(gradients, total + 4 * int64(others[i]), width)
        gradients += 4 * dim


@numba.njit
@no_type_check
def _add_signed(gradients, starts, num, width, dim, total, size):
    """Add one column of a block of gradients to one piece of each vector."""
    for i in range(num):
        start, sign = _place_and_sign(starts[i])
        if start <= size - width:
            add_scaled(gradients, total + 4 * start, width, sign)
        else:
            _add_circular(gradients, sign, total, size, start, width)
        gradients += 4 * dim


@numba.njit
@no_type_check
def write_block(array, size, starts, num, edges, out):
    """Write a block of vectors."""
    columns, dim = len(edges) - 1, edges[-1]
    for j in range(columns):
        width, first, line = edges[j + 1] - edges[j], out + 4 * edges[j], starts[j]
        if len(starts) > columns:
            _write_sums(width, array, line, starts[columns + j], num, dim, first)
        elif _are_plain(line, num, size - width):
            _write_column(width, array, line, num, dim, first)
        else:
            _write_signed(array, size, line, num, width, dim, first)


@numba.njit
@no_type_check
def add_block(gradients, starts, num, edges, total, size):
    """Add a block of gradients."""
    columns, dim = len(edges) - 1, edges[-1]
    for j in range(columns):
        width, first, line = edges[j + 1] - edges[j], gradients + 4 * edges[j], starts[j]
        if len(starts) > columns:
            _add_twice(width, first, line, starts[columns + j], num, dim, total)
        elif _are_plain(line, num, size - width):
            _add_column(width, first, line, num, dim, total)
        else:
            _add_signed(first, line, num, width, dim, total, size)
