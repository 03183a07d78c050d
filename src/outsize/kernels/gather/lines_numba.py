"""Sums of lines of float32 at addresses, each with a scale."""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import float32

from outsize.kernels.lines_numba import copy_line
from outsize.kernels.memory_numba import prefetch_address
from outsize.kernels.vectors_numba import (
    add,
    load,
    load_float,
    load_int32,
    multiply,
    splat,
    store,
)

_AHEAD_NUMBERS = 1024  # that are prefetched
_AHEAD_OCCURRENCES = 16


@numba.njit(forceinline=True)
@no_type_check
def rows_ahead(dim):
    """How many rows that are read to prefetch: enough to hide latency, no more than fit."""
    return min(max(_AHEAD_NUMBERS // dim, 8), 64)


@numba.njit(forceinline=True)
@no_type_check
def updates_ahead(dim):
    """How many rows that are updated to prefetch, with their state and gradient."""
    return min(max(_AHEAD_NUMBERS // dim, 4), 24)


@numba.njit(forceinline=True)
@no_type_check
def line_at(source, dim, order, i, lines):
    """The address of the line of occurrence i."""
    place = numba.int64(load_int32(order + 4 * i))
    return source + 4 * dim * (place if lines == 0 else numba.int64(load_int32(lines + 4 * place)))


@numba.njit(forceinline=True)
@no_type_check
def _scale(order, i, scales):
    """The scale of occurrence i."""
    if scales == 0:
        return float32(1.0)
    return load_float(scales + 4 * numba.int64(load_int32(order + 4 * i)))


@numba.njit(forceinline=True)
@no_type_check
def sum_lines(source, dim, order, first, stop, lines, scales, target):
    """Write the sum of occurrences `first` to `stop - 1`, in order, to an address.

    Occurrence i is at place `order[i]` of the batch, with the scale of that place if there are
    scales. Its line is that place, or `lines` of it if there are any. All but `dim`, `first` and
    `stop` are addresses, which are 0 for what there is not.
    """
    if stop - first == 1 and scales == 0:
        copy_line(line_at(source, dim, order, first, lines), target, dim)
        return
    whole = dim - dim % 8
    wide = dim - dim % 16
    zero = splat(float32(0.0))
    for j in range(0, 4 * wide, 64):  # a line of the processor's cache at a time
        low, high = zero, zero
        for i in range(first, stop):
            if i + _AHEAD_OCCURRENCES < stop:
                prefetch_address(line_at(source, dim, order, i + _AHEAD_OCCURRENCES, lines) + j)
            at = line_at(source, dim, order, i, lines) + j
            scale = splat(_scale(order, i, scales))
            low = add(low, multiply(scale, load(at)))
            high = add(high, multiply(scale, load(at + 32)))
        store(target + j, low)
        store(target + j + 32, high)
    for j in range(4 * wide, 4 * whole, 32):
        low = zero
        for i in range(first, stop):
            scale = splat(_scale(order, i, scales))
            low = add(low, multiply(scale, load(line_at(source, dim, order, i, lines) + j)))
        store(target + j, low)
    for j in range(4 * whole, 4 * dim, 4):
        total = float32(0.0)
        for i in range(first, stop):
            line = line_at(source, dim, order, i, lines)
            total += _scale(order, i, scales) * load_float(line + j)
        store(target + j, total)
