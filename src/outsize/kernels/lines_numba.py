"""Lines of float32 at addresses: sums, differences and quotients, each rounded as one number is."""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import float32

from outsize.kernels.vectors_numba import (
    add,
    divide,
    load,
    load_float,
    load_int64,
    splat,
    store,
    store_float,
    subtract,
)

_NO_SIGNS = 0x7FFFFFFF_7FFFFFFF  # of two float32


@numba.njit(forceinline=True)
@no_type_check
def start_sum(source, target, dim):
    """Write 0 + `dim` numbers, which is what a sum that starts at 0 has of a negative zero."""
    whole = dim - dim % 8
    zero = splat(float32(0.0))
    for j in range(0, 4 * whole, 32):
        store(target + j, add(zero, load(source + j)))
    for j in range(4 * whole, 4 * dim, 4):
        store_float(target + j, float32(0.0) + load_float(source + j))


@numba.njit(forceinline=True)
@no_type_check
def add_to_sum(source, target, dim):
    """Add `dim` numbers."""
    whole = dim - dim % 8
    for j in range(0, 4 * whole, 32):
        store(target + j, add(load(target + j), load(source + j)))
    for j in range(4 * whole, 4 * dim, 4):
        store_float(target + j, load_float(target + j) + load_float(source + j))


@numba.njit(forceinline=True)
@no_type_check
def add_and_copy(source, target, copy, dim):
    """Add `dim` numbers, and write the sums to a second line."""
    whole = dim - dim % 8
    for j in range(0, 4 * whole, 32):
        total = add(load(target + j), load(source + j))
        store(target + j, total)
        store(copy + j, total)
    for j in range(4 * whole, 4 * dim, 4):
        total_of_one = load_float(target + j) + load_float(source + j)
        store_float(target + j, total_of_one)
        store_float(copy + j, total_of_one)


@numba.njit(forceinline=True, error_model="numpy")
@no_type_check
def add_and_divide(source, target, quotients, dim, divisor):
    """Add `dim` numbers, and write them, divided, to a second line."""
    whole = dim - dim % 8
    divisors = splat(divisor)
    for j in range(0, 4 * whole, 32):
        value = load(source + j)
        store(target + j, add(load(target + j), value))
        store(quotients + j, divide(value, divisors))
    for j in range(4 * whole, 4 * dim, 4):
        number = load_float(source + j)
        store_float(target + j, load_float(target + j) + number)
        store_float(quotients + j, number / divisor)


@numba.njit(forceinline=True, error_model="numpy")
@no_type_check
def divide_line(target, dim, divisor):
    """Divide `dim` numbers."""
    whole = dim - dim % 8
    divisors = splat(divisor)
    for j in range(0, 4 * whole, 32):
        store(target + j, divide(load(target + j), divisors))
    for j in range(4 * whole, 4 * dim, 4):
        store_float(target + j, load_float(target + j) / divisor)


@numba.njit(forceinline=True)
@no_type_check
def put_difference(first, second, target, dim):
    """Write `dim` differences."""
    whole = dim - dim % 8
    for j in range(0, 4 * whole, 32):
        store(target + j, subtract(load(first + j), load(second + j)))
    for j in range(4 * whole, 4 * dim, 4):
        store_float(target + j, load_float(first + j) - load_float(second + j))


@numba.njit(forceinline=True)
@no_type_check
def is_zero(source, dim):
    """Whether all of `dim` numbers are 0 or −0."""
    bits = 0
    for j in range(0, 4 * (dim - dim % 2), 8):
        bits |= load_int64(source + j)
    is_found = bits & _NO_SIGNS == 0
    return is_found and (dim % 2 == 0 or load_float(source + 4 * dim - 4) == float32(0.0))
