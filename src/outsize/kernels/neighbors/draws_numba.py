"""`draw_neighbors`, compiled: the same numbers as the reference, in parts that threads take."""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np
from numpy import float64, int64, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.memory_numba import prefetch
from outsize.kernels.neighbors.parts_numba import first_group

_AHEAD = 16  # elements that are prefetched
_MOST_INSERTED = 64  # draws that are kept sorted by insertion; more are kept in a set
_STEP = 2.0**-52
_GOLDEN = uint64(0x9E3779B97F4A7C15)


@kernel(
    "int64(Array(int64, 1, 'C', readonly=True), int64, Array(int64, 1, 'C', readonly=True), int64,"
    " int64[::1])"
)
@no_type_check
def count_drawn(starts, num_edges, nodes, fan_out, drawn_starts):
    """Write where the drawn edges of each node start, and the end of the last.

    Returns −1, or the index of the first node that is not in `starts`, or whose edges are not among
    `num_edges`.
    """
    n = len(nodes)
    num_nodes = uint64(len(starts) - 1)
    total = 0
    drawn_starts[0] = 0
    for i in range(n):
        if i + _AHEAD < n and uint64(nodes[i + _AHEAD]) < num_nodes:
            prefetch(starts, nodes[i + _AHEAD])
        node = nodes[i]
        if uint64(node) >= num_nodes:
            return i
        first = starts[node]
        stop = starts[node + 1]
        if first < 0 or stop < first or stop > num_edges:
            return i
        degree = stop - first
        total += degree if fan_out < 0 else min(degree, fan_out)
        drawn_starts[i + 1] = total
    return -1


@numba.njit(forceinline=True)
@no_type_check
def _mix(word):
    word = (word ^ (word >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> uint64(27))) * uint64(0x94D049BB133111EB)
    return word ^ (word >> uint64(31))


@numba.njit(forceinline=True)
@no_type_check
def _place(key, number, last):
    """A place that is uniform in 0 … last."""
    bits = int64(_mix(key + uint64(number)) >> uint64(12))
    uniform = (float64(bits) + 0.5) * _STEP
    return min(int64(uniform * float64(last + 1)), last)


@numba.njit
@no_type_check
def _draw_few(key, degree, first, fan_out, out, at):
    """Floyd's method with the edges drawn so far sorted."""
    for number in range(fan_out):
        last = degree - fan_out + number
        edge = first + _place(key, number, last)
        k = at + number
        while k > at and out[k - 1] > edge:
            k -= 1
        if k > at and out[k - 1] == edge:
            out[at + number] = first + last  # beyond all others
        else:
            for j in range(at + number, k, -1):
                out[j] = out[j - 1]
            out[k] = edge


@numba.njit
@no_type_check
def _draw_many(key, degree, first, fan_out, out, at, taken):
    """Floyd's method with a hash set of the places drawn so far, whose size is a power of two."""
    taken[:] = -1
    mask = len(taken) - 1
    for number in range(fan_out):
        last = degree - fan_out + number
        place = _place(key, number, last)
        for _ in range(2):
            slot = int64((uint64(place) * _GOLDEN) >> uint64(32)) & mask
            while taken[slot] >= 0 and taken[slot] != place:
                slot = (slot + 1) & mask
            if taken[slot] < 0:
                break
            place = last  # which was not drawn before
        taken[slot] = place
        out[at + number] = first + place
    out[at : at + fan_out].sort()


@numba.njit
@no_type_check
def _power_of_two(least):
    size = 1
    while size < least:
        size *= 2
    return size


@numba.njit
@no_type_check
def _draw(part, parts, starts, sources, nodes, fan_out, seed, drawn_starts, out):
    begin = first_group(drawn_starts, part, parts)
    end = first_group(drawn_starts, part + 1, parts)
    taken = np.empty(1, int64)
    for i in range(begin, end):
        if i + _AHEAD < end:
            prefetch(starts, nodes[i + _AHEAD])
        node = nodes[i]
        first = starts[node]
        degree = starts[node + 1] - first
        at = drawn_starts[i]
        if fan_out < 0 or degree <= fan_out:
            for k in range(degree):
                out[at + k] = first + k
        else:
            key = _mix(uint64(node) ^ uint64(seed))
            if fan_out <= _MOST_INSERTED:
                _draw_few(key, degree, first, fan_out, out, at)
            else:
                if len(taken) < 2 * fan_out:
                    taken = np.empty(_power_of_two(2 * fan_out), int64)
                _draw_many(key, degree, first, fan_out, out, at, taken)
    stop = drawn_starts[end]
    for k in range(drawn_starts[begin], stop):
        if k + _AHEAD < stop:
            prefetch(sources, out[k + _AHEAD])
        out[k] = sources[out[k]]


@kernel(
    "void(int64, int64, Array(int64, 1, 'C', readonly=True), Array(int32, 1, 'C', readonly=True),"
    " Array(int64, 1, 'C', readonly=True), int64, int64, int64[::1], int64[::1])"
)
@no_type_check
def draw_int32(part, parts, starts, sources, nodes, fan_out, seed, drawn_starts, out):
    """Write the drawn sources of a part of the nodes, in the order of their edges."""
    _draw(part, parts, starts, sources, nodes, fan_out, seed, drawn_starts, out)


@kernel(
    "void(int64, int64, Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True),"
    " Array(int64, 1, 'C', readonly=True), int64, int64, int64[::1], int64[::1])"
)
@no_type_check
def draw_int64(part, parts, starts, sources, nodes, fan_out, seed, drawn_starts, out):
    """`draw_int32` for sources of 64 bits."""
    _draw(part, parts, starts, sources, nodes, fan_out, seed, drawn_starts, out)
