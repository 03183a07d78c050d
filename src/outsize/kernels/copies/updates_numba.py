"""What an update does to copies, in one pass over its gradients."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numpy import float32, int32, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.gather.lines_numba import updates_ahead
from outsize.kernels.lines_numba import add_and_divide, divide_line
from outsize.kernels.memory_numba import prefetch, prefetch_line
from outsize.kernels.rows.rule_numbers_numba import MEAN_SQUARES, NO_SQUARES, SQUARES
from outsize.kernels.rows.rules_numba import mean_square, prefetch_state, update_row
from outsize.kernels.rows.squares_numba import put_squares
from outsize.kernels.vectors_numba import address_of, load_float, store


@kernel(
    "void(int64, int64, int64, int64, float32, int64, int64[::1], float32[:, ::1], int64[::1],"
    " float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1], int32[::1],"
    " float32[:, ::1], float32[:, ::1], int64[::1], float32[::1])"
)
@no_type_check
def add_and_update(
    part, parts, rule, kind, divisor, saved_bytes, slots, gradients, counts, rows, first, second,
    third, ticks, pending, squares, balance, settings,
):  # fmt: skip
    """Add gradients, squares and ticks to what is pending for copies, and update the copies."""
    n, dim = gradients.shape
    table, added, sums = address_of(rows), address_of(gradients), address_of(pending)
    one, two, three = address_of(first), address_of(second), address_of(third)
    sums_of_squares, own_settings = address_of(squares), address_of(settings)
    line = np.empty(dim, float32)
    mean = address_of(line)
    distance = updates_ahead(dim)
    stop = n * (part + 1) // parts
    for i in range(n * part // parts, stop):
        if i + distance < stop and slots[i + distance] >= 0:
            ahead = slots[i + distance]
            prefetch_state(rule, dim, ahead, table, one, two, three)
            prefetch_line(sums + 4 * dim * ahead, dim)
            prefetch(ticks, ahead)
            prefetch(balance, ahead)
        slot = slots[i]
        if slot < 0:
            continue
        balance[uint64(slot)] += saved_bytes
        ticks[uint64(slot)] += int32(counts[i])
        gradient = added + 4 * dim * i
        if kind == MEAN_SQUARES:
            square = sums_of_squares + 4 * slot
            store(square, load_float(square) + mean_square(gradient, dim))
        elif kind == SQUARES:
            line_of_squares = sums_of_squares + 4 * dim * slot
            for j in range(0, 4 * dim, 4):
                number = load_float(gradient + j)
                total = load_float(line_of_squares + j) + number * number
                store(line_of_squares + j, total)
        add_and_divide(gradient, sums + 4 * dim * slot, dim, mean, divisor)
        update_row(rule, dim, slot, table, one, two, three, mean, 0, own_settings)


@kernel(
    "void(int64, int64, float32, int64[::1], float32[:, ::1], float32[:, ::1], float32[:, ::1],"
    " float32[:, ::1], int32[::1], float32[:, ::1], float32[:, ::1], float32[::1])"
)
@no_type_check
def apply_pending(
    rule, kind, divisor, slots, rows, first, second, third, ticks, pending, squares, settings
):
    """Update copies by what is pending for them, divided; squares by the divisor's square."""
    dim, width = rows.shape[1], squares.shape[1]
    table, sums, own_settings = address_of(rows), address_of(pending), address_of(settings)
    one, two, three = address_of(first), address_of(second), address_of(third)
    sums_of_squares = address_of(squares)
    line, line_of_squares = np.empty(dim, float32), np.empty(width, float32)
    mean, square = address_of(line), address_of(line_of_squares)
    if kind == NO_SQUARES:
        square = 0
    for i in range(len(slots)):
        slot = slots[i]
        divide_line(sums + 4 * dim * slot, mean, dim, divisor)
        if kind != NO_SQUARES:
            if ticks[uint64(slot)] > 1:
                summed = sums_of_squares + 4 * width * slot
                divide_line(summed, square, width, divisor * divisor)
            else:
                put_squares(mean, square, dim, kind)
        update_row(rule, dim, slot, table, one, two, three, mean, square, own_settings)
