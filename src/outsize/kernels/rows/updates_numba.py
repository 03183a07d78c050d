"""The update rules of `updates` in one pass over the rows of a batch, in place."""

from __future__ import annotations

from typing import no_type_check

from outsize.kernels.compiled import kernel
from outsize.kernels.gather.lines_numba import updates_ahead
from outsize.kernels.memory_numba import prefetch
from outsize.kernels.rows.rules_numba import mean_square, prefetch_state, update_row
from outsize.kernels.vectors_numba import address_of


@kernel("void(float32[:, ::1], float32[:, ::1])")
@no_type_check
def mean_squares(gradients, out):
    """The mean of the squares of each line, as row-wise Adagrad computes it."""
    dim = gradients.shape[1]
    for i in range(len(gradients)):
        out[i, 0] = mean_square(address_of(gradients) + 4 * i * dim, dim)


@kernel(
    "void(int64, int64, int64, float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1],"
    " int32[::1], int64[::1], float32[:, ::1], float32[:, ::1], int64[::1], float32[::1])"
)
@no_type_check
def update_rows(
    part, parts, rule, rows, first, second, third, clocks, places, gradients, squares, ticks,
    settings,
):  # fmt: skip
    """Update the rows at `places`, each of which is there once, and their state and clocks.

    `first`, `second` and `third` are the rule's state, without lines where it has less.
    """
    n = len(places)
    dim = rows.shape[1]
    table, gradient, own_settings = address_of(rows), address_of(gradients), address_of(settings)
    one, two, three = address_of(first), address_of(second), address_of(third)
    square, width = address_of(squares) if len(squares) > 0 else 0, squares.shape[1]
    distance = updates_ahead(dim)
    stop = n * (part + 1) // parts
    for i in range(n * part // parts, stop):
        if i + distance < stop:
            ahead = places[i + distance]
            prefetch_state(rule, dim, ahead, table, one, two, three)
            prefetch(clocks, ahead)
        row = places[i]
        clocks[row] += ticks[i]
        squares_of_row = square + 4 * i * width if square != 0 else 0
        update_row(
            rule, dim, row, table, one, two, three, gradient + 4 * i * dim, squares_of_row,
            own_settings,
        )  # fmt: skip
