"""Rows of a table gathered and pooled, and their gradients summed by row."""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import uint32, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.memory_numba import prefetch_row

_AHEAD = 16  # rows that are prefetched


@kernel("void(int64, int64, float32[:, ::1], int64[::1], float32[:, ::1])")
@no_type_check
def gather_rows(part, parts, rows, places, out):
    """Copy rows: line i of `out` is row `places[i]`."""
    n = len(places)
    dim = rows.shape[1]
    first = n * part // parts
    stop = n * (part + 1) // parts
    for i in range(first, min(first + _AHEAD, stop)):
        prefetch_row(rows, places[i], dim)
    for i in range(first, stop):
        if i + _AHEAD < stop:
            prefetch_row(rows, places[i + _AHEAD], dim)
        row = uint64(places[i])
        for j in range(dim):
            out[i, j] = rows[row, j]


@kernel(
    "void(int64, int64, float32[:, ::1], int64[::1], int64[::1], float32[::1], float32[:, ::1])"
)
@no_type_check
def pool_rows(part, parts, rows, places, edges, scales, out):
    """Sum rows by bag: line b of `out` is Σ scales[i] · rows[places[i]], i from edges[b] on.

    Without scales they are 1. The rows of a bag are added in order.
    """
    n = len(edges) - 1
    dim = rows.shape[1]
    scaled = len(scales) > 0
    for b in range(n * part // parts, n * (part + 1) // parts):
        first = edges[b]
        stop = edges[b + 1]
        for j in range(dim):
            out[b, j] = 0.0
        for i in range(first, stop):
            row = uint64(places[i])
            if scaled:
                scale = scales[i]
                for j in range(dim):
                    out[b, j] += scale * rows[row, j]
            else:
                for j in range(dim):
                    out[b, j] += rows[row, j]


@numba.njit(forceinline=True)
@no_type_check
def _add_line(gradients, line, scale, scaled, out, row, is_first):
    dim = gradients.shape[1]
    if scaled:
        if is_first:
            for j in range(dim):
                out[row, j] = scale * gradients[line, j]
        else:
            for j in range(dim):
                out[row, j] += scale * gradients[line, j]
    elif is_first:
        for j in range(dim):
            out[row, j] = gradients[line, j]
    else:
        for j in range(dim):
            out[row, j] += gradients[line, j]


@kernel(
    "void(int64, int64, float32[:, ::1], int32[::1], int32[::1], int64, int32[::1], float32[::1],"
    " int64, float32[:, ::1], float32[:, ::1])"
)
@no_type_check
def sum_by_row(part, parts, gradients, order, starts, num_rows, lines, scales, block, out, carried):
    """Sum the gradients of each row's occurrences.

    The occurrences, sorted by row, are cut into blocks of fixed size, so that a row with very many
    of them is summed by several threads, and in the same order by any number of threads. What a
    block adds to a row that an earlier block began goes to its line of `carried`.
    """
    n = len(order)
    num_blocks = (n + block - 1) // block
    scaled = len(scales) > 0
    mapped = len(lines) > 0
    begin = num_blocks * part // parts * block
    end = min(num_blocks * (part + 1) // parts * block, n)
    if begin >= end:
        return
    low = 0
    high = num_rows
    while low + 1 < high:  # the row of occurrence `begin`
        middle = (low + high) // 2
        if starts[middle] <= begin:
            low = middle
        else:
            high = middle
    row = low
    i = begin
    while i < end:
        edge = min((i // block + 1) * block, end)
        while i < edge:
            stop = min(starts[row + 1], edge)
            is_carried = i > starts[row]
            target = carried if is_carried else out
            line_out = i // block if is_carried else row
            first = True
            while i < stop:
                if i + _AHEAD < end:
                    ahead = order[i + _AHEAD]
                    prefetch_row(
                        gradients, lines[uint64(ahead)] if mapped else ahead, gradients.shape[1]
                    )
                place = order[i]
                line = uint64(lines[uint64(place)] if mapped else place)
                scale = scales[uint64(place)] if scaled else numba.float32(1.0)
                _add_line(gradients, line, scale, scaled, target, uint64(line_out), first)
                first = False
                i += 1
            if i == starts[row + 1]:
                row += 1


@kernel("void(int32[::1], int64, int64, int64, float32[:, ::1], float32[:, ::1])")
@no_type_check
def add_carried(starts, num_rows, block, n, out, carried):
    """Add what blocks summed for rows that an earlier block began, in the order of blocks."""
    row = 0
    for i in range(1, (n + block - 1) // block):
        low = row
        high = num_rows
        while low + 1 < high:  # the row of the block's first occurrence
            middle = (low + high) // 2
            if starts[middle] <= i * block:
                low = middle
            else:
                high = middle
        row = low
        if starts[row] < i * block:
            for j in range(out.shape[1]):
                out[row, j] += carried[i, j]


@kernel("boolean(uint32[::1])")
@no_type_check
def is_finite(bits):
    """Whether no float32 of these bits is NaN or infinite."""
    exponent = uint32(0x7F800000)
    num_bad = uint32(0)
    for i in range(len(bits)):
        num_bad += uint32((bits[i] & exponent) == exponent)
    return num_bad == 0
