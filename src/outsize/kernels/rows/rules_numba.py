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

from outsize.kernels.lines_numba import of_lines
from outsize.kernels.memory_numba import prefetch_address, prefetch_line
from outsize.kernels.rows.rule_numbers_numba import ADAGRAD, ADAM, ROW_ADAGRAD, SGD
from outsize.kernels.vectors_numba import (
    add,
    divide,
    lane,
    load,
    load_float,
    load_like,
    multiply,
    repeated,
    scale,
    splat,
    square_root,
    store,
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
        _sgd(gradient, target, dim, rate)
    elif rule == ROW_ADAGRAD:
        eps = load_float(settings + 4)
        _row_adagrad(gradient, target, dim, first + 4 * row, squares, rate, eps)
    elif rule == ADAGRAD:
        eps = load_float(settings + 4)
        _adagrad(gradient, target, dim, first + 4 * row * dim, squares, rate, eps)
    else:
        moments = 4 * row * dim
        _adam(gradient, target, dim, first + moments, second + moments, third + 4 * row, settings)


@of_lines
@no_type_check
def _sgd(gradients, target, j, rate):
    store(target + j, subtract(load_like(target + j, gradients), scale(gradients, rate)))


@numba.njit(forceinline=True)
@no_type_check
def _row_adagrad(gradient, target, dim, state, squares, rate, eps):
    total = load_float(state)
    total += mean_square(gradient, dim) if squares == 0 else load_float(squares)
    store(state, total)
    _add_quotients(gradient, target, dim, -rate, sqrt(total) + eps)


@of_lines
@no_type_check
def _add_quotients(values, target, j, factor, divisor):
    step = divide(scale(values, factor), repeated(divisor, values))
    store(target + j, add(load_like(target + j, values), step))


@of_lines
@no_type_check
def _adagrad(gradients, target, j, state, squares, rate, eps):
    square = multiply(gradients, gradients)
    if squares != 0:
        square = load_like(squares + j, gradients)
    total = add(load_like(state + j, gradients), square)
    store(state + j, total)
    divisor = add(square_root(total), repeated(eps, total))
    step = divide(scale(gradients, -rate), divisor)
    store(target + j, add(load_like(target + j, step), step))


@numba.njit(forceinline=True)
@no_type_check
def _adam(gradient, target, dim, first, second, steps, settings):
    one = float32(1.0)
    beta_1, beta_2 = load_float(settings + 8), load_float(settings + 16)
    count = load_float(steps) + one
    store(steps, count)
    corrections = one - beta_1**count, one - beta_2**count
    _adam_step(gradient, target, dim, first, second, corrections, settings)


@of_lines
@no_type_check
def _adam_step(gradients, target, j, first, second, corrections, settings):
    rate, eps = load_float(settings), repeated(load_float(settings + 4), gradients)
    rest_1, beta_2 = load_float(settings + 12), load_float(settings + 16)
    before = load_like(first + j, gradients)
    mean = add(before, scale(subtract(gradients, before), rest_1))
    fresh = multiply(scale(gradients, load_float(settings + 20)), gradients)
    variance = add(scale(load_like(second + j, gradients), beta_2), fresh)
    store(first + j, mean)
    store(second + j, variance)
    mean = divide(mean, repeated(corrections[0], mean))
    variance = divide(variance, repeated(corrections[1], variance))
    step = divide(scale(mean, -rate), add(square_root(variance), eps))
    store(target + j, add(load_like(target + j, step), step))
