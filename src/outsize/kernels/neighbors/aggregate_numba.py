"""`aggregate` and its gradients, compiled; every number is summed in the order of the edges."""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import float32, int32, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.memory_numba import prefetch_row
from outsize.kernels.neighbors.parts_numba import first_group

_AHEAD = 12  # rows that are prefetched
_LINE_FLOATS = 16


@kernel("void(int64, int64, float32[:, ::1], int64[::1], int64[::1], boolean, float32[:, ::1])")
@no_type_check
def sum_sources(part, parts, vectors, starts, sources, mean, out):
    """Line t of `out` is the sum or mean of the vectors of target t's sources."""
    dim = vectors.shape[1]
    num_edges = len(sources)
    for t in range(first_group(starts, part, parts), first_group(starts, part + 1, parts)):
        first = starts[t]
        stop = starts[t + 1]
        for j in range(dim):
            out[t, j] = float32(0.0)
        e = first
        while e + 4 <= stop:  # four rows for each pass over the line
            for k in range(e + _AHEAD, min(e + _AHEAD + 4, num_edges)):
                prefetch_row(vectors, sources[k], dim)
            a = uint64(sources[e])
            b = uint64(sources[e + 1])
            c = uint64(sources[e + 2])
            d = uint64(sources[e + 3])
            for j in range(dim):
                out[t, j] += (vectors[a, j] + vectors[b, j]) + (vectors[c, j] + vectors[d, j])
            e += 4
        while e < stop:
            if e + _AHEAD < num_edges:
                prefetch_row(vectors, sources[e + _AHEAD], dim)
            a = uint64(sources[e])
            for j in range(dim):
                out[t, j] += vectors[a, j]
            e += 1
        if mean and stop - first > 1:
            scale = float32(1.0) / float32(stop - first)
            for j in range(dim):
                out[t, j] *= scale


@kernel("void(int64[::1], int64[::1], int64[::1], int32[::1])")
@no_type_check
def transpose(starts, sources, by_source, targets):
    """Group edges by source: the targets of source s are those from `by_source[s]` on, in order."""
    num_nodes = len(by_source) - 1
    for s in range(num_nodes + 1):
        by_source[s] = 0
    for e in range(len(sources)):
        by_source[uint64(sources[e])] += 1
    total = 0
    for s in range(num_nodes + 1):
        count = by_source[s]
        by_source[s] = total
        total += count
    for t in range(len(starts) - 1):
        for e in range(starts[t], starts[t + 1]):
            s = uint64(sources[e])
            place = by_source[s]
            targets[uint64(place)] = int32(t)
            by_source[s] = place + 1
    for s in range(num_nodes, 0, -1):  # each has moved to the start of the next
        by_source[s] = by_source[s - 1]
    by_source[0] = 0


@numba.njit(forceinline=True)
@no_type_check
def _scale(starts, t, mean):
    return float32(1.0) / float32(starts[t + 1] - starts[t]) if mean else float32(1.0)


@kernel(
    "void(int64, int64, float32[:, ::1], int64[::1], boolean, int64[::1], int32[::1],"
    " float32[:, ::1])"
)
@no_type_check
def sum_targets(part, parts, gradients, starts, mean, by_source, targets, out):
    """Line s of `out` is the sum of the gradients of source s's targets, divided for a mean."""
    dim = gradients.shape[1]
    num_edges = len(targets)
    for s in range(first_group(by_source, part, parts), first_group(by_source, part + 1, parts)):
        first = by_source[s]
        stop = by_source[s + 1]
        if first == stop:
            for j in range(dim):
                out[s, j] = float32(0.0)
        for e in range(first, stop):
            if e + _AHEAD < num_edges:
                prefetch_row(gradients, targets[e + _AHEAD], dim)
            t = uint64(targets[e])
            scale = _scale(starts, targets[e], mean)
            if e == first:
                for j in range(dim):
                    out[s, j] = scale * gradients[t, j]
            else:
                for j in range(dim):
                    out[s, j] += scale * gradients[t, j]


@kernel(
    "void(int64, int64, float32[:, ::1], int64[::1], int64[::1], float32[:, ::1], int32[:, ::1])"
)
@no_type_check
def max_sources(part, parts, vectors, starts, sources, out, winners):
    """The maximum of each number over a target's sources, and the first source that has it.

    NaN is the maximum wherever there is one. Without sources the maximum is 0, its source −1.
    """
    dim = vectors.shape[1]
    num_edges = len(sources)
    for t in range(first_group(starts, part, parts), first_group(starts, part + 1, parts)):
        first = starts[t]
        stop = starts[t + 1]
        if first == stop:
            for j in range(dim):
                out[t, j] = float32(0.0)
                winners[t, j] = -1
            continue
        source = int32(sources[first])
        row = uint64(sources[first])
        for j in range(dim):
            out[t, j] = vectors[row, j]
            winners[t, j] = source
        for e in range(first + 1, stop):
            if e + _AHEAD < num_edges:
                prefetch_row(vectors, sources[e + _AHEAD], dim)
            source = int32(sources[e])
            row = uint64(sources[e])
            for j in range(dim):
                value = vectors[row, j]
                best = out[t, j]
                is_better = (not (value <= best)) & (best == best)
                out[t, j] = value if is_better else best
                winners[t, j] = source if is_better else winners[t, j]


@kernel("void(int64, int64, float32[:, ::1], int32[:, ::1], float32[:, ::1])")
@no_type_check
def add_to_winners(part, parts, gradients, winners, out):
    """Add each number's gradient to the source that it was read from; parts are columns."""
    num_lines = (gradients.shape[1] + _LINE_FLOATS - 1) // _LINE_FLOATS
    first = num_lines * part // parts * _LINE_FLOATS
    stop = min(num_lines * (part + 1) // parts * _LINE_FLOATS, gradients.shape[1])
    for t in range(gradients.shape[0]):
        for j in range(first, stop):
            source = winners[t, j]
            if source >= 0:
                out[uint64(source), j] += gradients[t, j]
