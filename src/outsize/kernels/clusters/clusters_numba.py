"""The two loops of k-means, for points of a low dim.

Points are taken in blocks of `LANES`, one per lane of the vector unit, so that each of them is
compared with every centroid by the same instructions: its result depends neither on the points
beside it nor on the number of threads.
"""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy
from numpy import float32, float64, int32, int64, uint64

from outsize.kernels.compiled import kernel

LANES = 128
TILE = 4  # centroids that are compared with a block of points at once
DIMS = (4, 8, 16)  # points of other dims are padded with zeros; inner loops of 32 are not unrolled


@numba.njit(forceinline=True, fastmath={"contract"})
@no_type_check
def _compare(dim, block, centroids, half_norms, best, found):
    """Find the centroid of the least |c|²/2 − x·c for each point of a block, the lowest of equals.

    `dim` is a constant where this is inlined, so that the inner loop is unrolled.
    """
    for lane in range(uint64(LANES)):
        best[lane] = float32(numpy.inf)
        found[lane] = int32(0)
    for c in range(uint64(0), uint64(half_norms.shape[0]), uint64(TILE)):
        first = c * uint64(dim)
        second = first + uint64(dim)
        third = second + uint64(dim)
        fourth = third + uint64(dim)
        for lane in range(uint64(LANES)):
            a = half_norms[c]
            b = half_norms[c + uint64(1)]
            d = half_norms[c + uint64(2)]
            e = half_norms[c + uint64(3)]
            for j in range(uint64(dim)):
                x = block[j * uint64(LANES) + lane]
                a -= x * centroids[first + j]
                b -= x * centroids[second + j]
                d -= x * centroids[third + j]
                e -= x * centroids[fourth + j]
            of_two = int32(c) + int32(1) if b < a else int32(c)
            a = b if b < a else a
            of_others = int32(c) + int32(3) if e < d else int32(c) + int32(2)
            d = e if e < d else d
            of_two = of_others if d < a else of_two
            a = d if d < a else a
            is_less = a < best[lane]
            best[lane] = a if is_less else best[lane]
            found[lane] = of_two if is_less else found[lane]


@kernel("void(int64, int64, float32[:, ::1], int64, float32[::1], float32[::1], int64[::1])")
@no_type_check
def find_nearest(part, parts, points, dim, centroids, half_norms, labels):
    """The nearest centroid of each point.

    `centroids` are rows of `dim`, one of `DIMS`, and at least that of the points; their number is a
    multiple of `TILE`. Those that are only there for that have `half_norms` of infinity.
    """
    n, width = points.shape
    num_blocks = (n + LANES - 1) // LANES
    block = numpy.zeros(dim * LANES, dtype=float32)
    best = numpy.empty(LANES, dtype=float32)
    found = numpy.empty(LANES, dtype=int32)
    for number in range(num_blocks * part // parts, num_blocks * (part + 1) // parts):
        start = number * LANES
        num_points = min(int64(LANES), n - start)
        for lane in range(num_points):
            for j in range(width):
                block[j * LANES + lane] = points[start + lane, j]
        if dim == 4:
            _compare(4, block, centroids, half_norms, best, found)
        elif dim == 8:
            _compare(8, block, centroids, half_norms, best, found)
        else:
            _compare(16, block, centroids, half_norms, best, found)
        for lane in range(num_points):
            labels[start + lane] = found[lane]


@kernel(
    "void(int64, int64, float32[:, ::1], float64[::1], int64[::1], float64[::1], float64[:, ::1])"
)
@no_type_check
def add_to_clusters(part, parts, points, weights, labels, masses, sums):
    """Add each point's weight and weighted point to its cluster, in the order of the points.

    A part adds to the clusters of its own, so that any number of parts rounds alike.
    """
    n, dim = points.shape
    k = masses.shape[0]
    first = k * part // parts
    stop = k * (part + 1) // parts
    for i in range(uint64(n)):
        label = labels[i]
        if first <= label < stop:
            c = uint64(label)
            weight = weights[i]
            masses[c] += weight
            for j in range(uint64(dim)):
                sums[c, j] += float64(points[i, j]) * weight
