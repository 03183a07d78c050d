"""Lines of float32 at addresses, worked on a few numbers at a time.

A loop over single numbers costs more than the work in it, so that there are vectors of 16, 8, 4
and 1; each element is rounded as one number is.
"""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import float32

from outsize.kernels.vectors_numba import (
    add,
    divide,
    load,
    load_1,
    load_4,
    load_16,
    load_float,
    load_int64,
    load_like,
    repeated,
    scale,
    store,
    subtract,
)

_NO_SIGNS = 0x7FFFFFFF_7FFFFFFF  # of two float32


@no_type_check
def of_lines(step):
    """A function of lines, `(source, target, dim, *others)`, from what it does with a few numbers.

    It calls `step(values, target, j, *others)` with the numbers that begin at byte j of `source`.
    """
    step = numba.njit(forceinline=True)(step)

    @numba.njit(forceinline=True)
    def line(source, target, dim, *others):
        wide, eights, fours = 4 * (dim - dim % 16), 4 * (dim - dim % 8), 4 * (dim - dim % 4)
        for j in range(0, wide, 64):
            step(load_16(source + j), target, j, *others)
        for j in range(wide, eights, 32):
            step(load(source + j), target, j, *others)
        for j in range(eights, fours, 16):
            step(load_4(source + j), target, j, *others)
        for j in range(fours, 4 * dim, 4):
            step(load_1(source + j), target, j, *others)

    return line


@of_lines
@no_type_check
def copy_line(values, target, j):
    """Copy numbers."""
    store(target + j, values)


@of_lines
@no_type_check
def copy_scaled(values, target, j, factor):
    """Copy numbers, times a factor."""
    store(target + j, scale(values, factor))


@of_lines
@no_type_check
def start_sum(values, target, j):
    """Write 0 + numbers, which is what a sum that starts at 0 has of a negative zero."""
    store(target + j, add(repeated(float32(0.0), values), values))


@of_lines
@no_type_check
def add_line(values, target, j):
    """Add numbers."""
    store(target + j, add(load_like(target + j, values), values))


@of_lines
@no_type_check
def add_scaled(values, target, j, factor):
    """Add numbers, times a factor."""
    store(target + j, add(load_like(target + j, values), scale(values, factor)))


@of_lines
@no_type_check
def add_and_copy(values, target, j, copy):
    """Add numbers, and write the sums to a second line."""
    total = add(load_like(target + j, values), values)
    store(target + j, total)
    store(copy + j, total)


@of_lines
@no_type_check
def add_and_divide(values, target, j, quotients, divisor):
    """Add numbers, and write them, divided, to a second line."""
    store(target + j, add(load_like(target + j, values), values))
    store(quotients + j, divide(values, repeated(divisor, values)))


@of_lines
@no_type_check
def divide_line(values, target, j, divisor):
    """Write numbers, divided."""
    store(target + j, divide(values, repeated(divisor, values)))


@of_lines
@no_type_check
def put_sum(values, target, j, other):
    """Write the sums of numbers and those of another line."""
    store(target + j, add(values, load_like(other + j, values)))


@of_lines
@no_type_check
def put_difference(values, target, j, other):
    """Write numbers less those of another line."""
    store(target + j, subtract(values, load_like(other + j, values)))


@numba.njit(forceinline=True)
@no_type_check
def is_zero(source, dim):
    """Whether all of `dim` numbers are 0 or −0."""
    bits = 0
    for j in range(0, 4 * (dim - dim % 2), 8):
        bits |= load_int64(source + j)
    is_found = bits & _NO_SIGNS == 0
    return is_found and (dim % 2 == 0 or load_float(source + 4 * dim - 4) == float32(0.0))
