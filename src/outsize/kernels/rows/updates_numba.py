"""The update rules of `updates` in one pass over the rows of a batch, in place.

All arithmetic is float32, element by element as in the reference. A mean over a row is summed in
eight lanes, so it may differ from the reference in the last bits, but not between calls: any number
of threads, and a row in a table or alone, give the same bits.
"""

from __future__ import annotations

from math import sqrt
from typing import no_type_check

import numba
from numpy import float32, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.memory_numba import prefetch, prefetch_row

_AHEAD = 8  # rows that are prefetched


@numba.njit(forceinline=True)
@no_type_check
def _mean_square(gradients, i):
    """The mean of the squares of line i, summed in eight lanes."""
    dim = gradients.shape[1]
    a = b = c = d = e = f = g = h = float32(0.0)
    whole = dim - dim % 8
    for j in range(0, whole, 8):
        a += gradients[i, j] * gradients[i, j]
        b += gradients[i, j + 1] * gradients[i, j + 1]
        c += gradients[i, j + 2] * gradients[i, j + 2]
        d += gradients[i, j + 3] * gradients[i, j + 3]
        e += gradients[i, j + 4] * gradients[i, j + 4]
        f += gradients[i, j + 5] * gradients[i, j + 5]
        g += gradients[i, j + 6] * gradients[i, j + 6]
        h += gradients[i, j + 7] * gradients[i, j + 7]
    total = ((a + e) + (c + g)) + ((b + f) + (d + h))
    for j in range(whole, dim):
        total += gradients[i, j] * gradients[i, j]
    return total / float32(dim)


@kernel("void(float32[:, ::1], float32[:, ::1])")
@no_type_check
def mean_squares(gradients, out):
    """The mean of the squares of each line, as `row_adagrad` computes it."""
    for i in range(len(gradients)):
        out[i, 0] = _mean_square(gradients, i)


@numba.njit(forceinline=True)
@no_type_check
def _prefetch_lines(place, rows, state, clocks):
    width = state.shape[1]
    prefetch_row(rows, place, rows.shape[1])
    prefetch_row(state, place, width)
    prefetch(clocks, place)


@kernel(
    "void(int64, int64, float32[:, ::1], int32[::1], int64[::1], float32[:, ::1], int64[::1],"
    " float32)"
)
@no_type_check
def sgd(part, parts, rows, clocks, places, gradients, ticks, rate):
    """SGD: row ← row − η·g."""
    n = len(places)
    dim = rows.shape[1]
    stop = n * (part + 1) // parts
    for i in range(n * part // parts, stop):
        if i + _AHEAD < stop:
            prefetch_row(rows, places[i + _AHEAD], dim)
            prefetch(clocks, places[i + _AHEAD])
        place = uint64(places[i])
        clocks[place] += ticks[i]
        for j in range(dim):
            rows[place, j] -= rate * gradients[i, j]


@kernel(
    "void(int64, int64, float32[:, ::1], float32[:, ::1], int32[::1], int64[::1],"
    " float32[:, ::1], float32[:, ::1], int64[::1], float32, float32)"
)
@no_type_check
def row_adagrad(part, parts, rows, sums, clocks, places, gradients, squares, ticks, rate, eps):
    """Row-wise Adagrad: s ← s + mean(g²), row ← row − η·g / (√s + ε).

    `squares` replace mean(g²) if there are any.
    """
    n = len(places)
    dim = rows.shape[1]
    stop = n * (part + 1) // parts
    given = len(squares) > 0
    for i in range(n * part // parts, stop):
        if i + _AHEAD < stop:
            _prefetch_lines(places[i + _AHEAD], rows, sums, clocks)
        place = uint64(places[i])
        clocks[place] += ticks[i]
        total = sums[place, 0] + (squares[i, 0] if given else _mean_square(gradients, i))
        sums[place, 0] = total
        divisor = sqrt(total) + eps
        for j in range(dim):
            rows[place, j] += -rate * gradients[i, j] / divisor


@kernel(
    "void(int64, int64, float32[:, ::1], float32[:, ::1], int32[::1], int64[::1],"
    " float32[:, ::1], float32[:, ::1], int64[::1], float32, float32)"
)
@no_type_check
def adagrad(part, parts, rows, sums, clocks, places, gradients, squares, ticks, rate, eps):
    """Adagrad: s ← s + g², row ← row − η·g / (√s + ε); `squares` replace g² if there are any."""
    n = len(places)
    dim = rows.shape[1]
    stop = n * (part + 1) // parts
    given = len(squares) > 0
    for i in range(n * part // parts, stop):
        if i + _AHEAD < stop:
            _prefetch_lines(places[i + _AHEAD], rows, sums, clocks)
        place = uint64(places[i])
        clocks[place] += ticks[i]
        for j in range(dim):
            gradient = gradients[i, j]
            total = sums[place, j] + (squares[i, j] if given else gradient * gradient)
            sums[place, j] = total
            rows[place, j] += -rate * gradient / (sqrt(total) + eps)


@kernel(
    "void(int64, int64, float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1],"
    " int32[::1], int64[::1], float32[:, ::1], int64[::1], float32, float32, float32, float32,"
    " float32, float32)"
)
@no_type_check
def adam(
    part,
    parts,
    rows,
    means,
    variances,
    steps,
    clocks,
    places,
    gradients,
    ticks,
    rate,
    eps,
    beta_1,
    rest_1,
    beta_2,
    rest_2,
):
    """Adam with the bias correction of each row's own number of updates; rest = 1 − β."""
    n = len(places)
    dim = rows.shape[1]
    one = float32(1.0)
    stop = n * (part + 1) // parts
    for i in range(n * part // parts, stop):
        if i + _AHEAD < stop:
            place = places[i + _AHEAD]
            _prefetch_lines(place, rows, means, clocks)
            prefetch_row(variances, place, dim)
            prefetch(steps, place)
        place = uint64(places[i])
        clocks[place] += ticks[i]
        count = steps[place, 0] + one
        steps[place, 0] = count
        correction_1 = one - beta_1**count
        correction_2 = one - beta_2**count
        for j in range(dim):
            gradient = gradients[i, j]
            mean = means[place, j] + rest_1 * (gradient - means[place, j])
            variance = variances[place, j] * beta_2 + rest_2 * gradient * gradient
            means[place, j] = mean
            variances[place, j] = variance
            divisor = sqrt(variance / correction_2) + eps
            rows[place, j] += -rate * (mean / correction_1) / divisor
