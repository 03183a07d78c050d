"""The update rules of `updates` for one row, for kernels that update many.

All arithmetic is float32, element by element as in the reference. A mean over a row is summed in
eight lanes, so it may differ from the reference in the last bits, but not between calls: a row in a
table or alone, in a batch or in the backward pass, gets the same bits.
"""

from __future__ import annotations

from math import sqrt
from typing import no_type_check

import numba
from numpy import float32

from outsize.kernels.memory_numba import prefetch_address, prefetch_line
from outsize.kernels.rows.rule_numbers_numba import ADAGRAD, ADAM, ROW_ADAGRAD, SGD
from outsize.kernels.vectors_numba import (
    add,
    divide,
    lane,
    load,
    load_float,
    multiply,
    splat,
    square_root,
    store,
    store_float,
    subtract,
)


@numba.njit(forceinline=True)
@no_type_check
def mean_square(gradient, dim):
    """The mean of the squares of `dim` numbers at an address, summed in eight lanes."""
    sums = splat(float32(0.0))
    whole = dim - dim % 8
    for j in range(0, whole, 8):
        value = load(gradient + 4 * j)
        sums = add(sums, multiply(value, value))
    even = (lane(sums, 0) + lane(sums, 4)) + (lane(sums, 2) + lane(sums, 6))
    odd = (lane(sums, 1) + lane(sums, 5)) + (lane(sums, 3) + lane(sums, 7))
    total = even + odd
    for j in range(whole, dim):
        value = load_float(gradient + 4 * j)
        total += value * value
    return total / float32(dim)


@numba.njit(forceinline=True)
@no_type_check
def prefetch_state(rule, dim, row, rows, first, second, third):
    """Prefetch what an update of a row reads; arguments as for `update_row`."""
    prefetch_line(rows + 4 * row * dim, dim)
    if rule == ROW_ADAGRAD:
        prefetch_address(first + 4 * row)
    elif rule != SGD:
        prefetch_line(first + 4 * row * dim, dim)
        if rule == ADAM:
            prefetch_line(second + 4 * row * dim, dim)
            prefetch_address(third + 4 * row)


@numba.njit(forceinline=True)
@no_type_check
def update_row(rule, dim, row, rows, first, second, third, gradient, squares, settings):
    """Update a row and its state in place.

    `rule` is one of `rule_numbers_numba`. The table, the three arrays of its state, the gradient,
    the squares that replace those of the gradient (0 if none do) and the settings are addresses.
    Settings are the rate, ε, β₁, 1 − β₁, β₂ and 1 − β₂; a rule uses some of them.
    """
    target, rate = rows + 4 * row * dim, load_float(settings)
    if rule == SGD:
        _sgd(dim, target, gradient, rate)
    elif rule == ROW_ADAGRAD:
        eps = load_float(settings + 4)
        _row_adagrad(dim, target, first + 4 * row, gradient, squares, rate, eps)
    elif rule == ADAGRAD:
        eps = load_float(settings + 4)
        _adagrad(dim, target, first + 4 * row * dim, gradient, squares, rate, eps)
    else:
        moments = 4 * row * dim
        _adam(dim, target, first + moments, second + moments, third + 4 * row, gradient, settings)


@numba.njit(forceinline=True)
@no_type_check
def _sgd(dim, target, gradient, rate):
    rates = splat(rate)
    whole = dim - dim % 8
    for j in range(0, 4 * whole, 32):
        store(target + j, subtract(load(target + j), multiply(rates, load(gradient + j))))
    for j in range(4 * whole, 4 * dim, 4):
        store_float(target + j, load_float(target + j) - rate * load_float(gradient + j))


@numba.njit(forceinline=True)
@no_type_check
def _row_adagrad(dim, target, state, gradient, squares, rate, eps):
    total = load_float(state)
    total += mean_square(gradient, dim) if squares == 0 else load_float(squares)
    store_float(state, total)
    divisor = sqrt(total) + eps
    rates, divisors = splat(-rate), splat(divisor)
    whole = dim - dim % 8
    for j in range(0, 4 * whole, 32):
        step = divide(multiply(rates, load(gradient + j)), divisors)
        store(target + j, add(load(target + j), step))
    for j in range(4 * whole, 4 * dim, 4):
        step_of_one = -rate * load_float(gradient + j) / divisor
        store_float(target + j, load_float(target + j) + step_of_one)


@numba.njit(forceinline=True)
@no_type_check
def _adagrad(dim, target, state, gradient, squares, rate, eps):
    rates, epsilons = splat(-rate), splat(eps)
    whole = dim - dim % 8
    for j in range(0, 4 * whole, 32):
        value = load(gradient + j)
        square = multiply(value, value) if squares == 0 else load(squares + j)
        total = add(load(state + j), square)
        store(state + j, total)
        step = divide(multiply(rates, value), add(square_root(total), epsilons))
        store(target + j, add(load(target + j), step))
    for j in range(4 * whole, 4 * dim, 4):
        number = load_float(gradient + j)
        sum_of_one = load_float(state + j)
        sum_of_one += number * number if squares == 0 else load_float(squares + j)
        store_float(state + j, sum_of_one)
        step_of_one = -rate * number / (sqrt(sum_of_one) + eps)
        store_float(target + j, load_float(target + j) + step_of_one)


@numba.njit(forceinline=True)
@no_type_check
def _adam(dim, target, first, second, steps, gradient, settings):
    one = float32(1.0)
    rate, eps = load_float(settings), load_float(settings + 4)
    beta_1, rest_1 = load_float(settings + 8), load_float(settings + 12)
    beta_2, rest_2 = load_float(settings + 16), load_float(settings + 20)
    count = load_float(steps) + one
    store_float(steps, count)
    correction_1 = one - beta_1**count
    correction_2 = one - beta_2**count
    whole = dim - dim % 8
    for j in range(0, 4 * whole, 32):
        value, before = load(gradient + j), load(first + j)
        mean = add(before, multiply(splat(rest_1), subtract(value, before)))
        fresh = multiply(multiply(splat(rest_2), value), value)
        variance = add(multiply(load(second + j), splat(beta_2)), fresh)
        store(first + j, mean)
        store(second + j, variance)
        divisor = add(square_root(divide(variance, splat(correction_2))), splat(eps))
        step = divide(multiply(splat(-rate), divide(mean, splat(correction_1))), divisor)
        store(target + j, add(load(target + j), step))
    for j in range(4 * whole, 4 * dim, 4):
        number, mean_of_one = load_float(gradient + j), load_float(first + j)
        mean_of_one += rest_1 * (number - mean_of_one)
        variance_of_one = load_float(second + j) * beta_2 + rest_2 * number * number
        store_float(first + j, mean_of_one)
        store_float(second + j, variance_of_one)
        divisor_of_one = sqrt(variance_of_one / correction_2) + eps
        step_of_one = -rate * (mean_of_one / correction_1) / divisor_of_one
        store_float(target + j, load_float(target + j) + step_of_one)
