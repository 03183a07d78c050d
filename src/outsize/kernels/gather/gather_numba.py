"""Rows of a table gathered and pooled, and their gradients summed by row."""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import uint32

from outsize.kernels.compiled import kernel
from outsize.kernels.gather.lines_numba import (
    line_at,
    rows_ahead,
    sum_lines,
)
from outsize.kernels.lines_numba import add_line, add_scaled, copy_line
from outsize.kernels.memory_numba import prefetch_line
from outsize.kernels.vectors_numba import address_of, store

_AHEAD = 32  # occurrences whose gradients are prefetched


@kernel("void(int64, int64, float32[:, ::1], int64[::1], float32[:, ::1])")
@no_type_check
def gather_rows(part, parts, rows, places, out):
    """Copy rows: line i of `out` is row `places[i]`."""
    n = len(places)
    dim = rows.shape[1]
    ahead = rows_ahead(dim)
    source, target = address_of(rows), address_of(out)
    first = n * part // parts
    stop = n * (part + 1) // parts
    for i in range(first, min(first + ahead, stop)):
        prefetch_line(source + 4 * places[i] * dim, dim)
    for i in range(first, stop):
        if i + ahead < stop:
            prefetch_line(source + 4 * places[i + ahead] * dim, dim)
        copy_line(source + 4 * places[i] * dim, target + 4 * i * dim, dim)


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
    ahead = rows_ahead(dim)
    source, target = address_of(rows), address_of(out)
    scaled = len(scales) > 0
    end = edges[n * (part + 1) // parts]
    for b in range(n * part // parts, n * (part + 1) // parts):
        line = target + 4 * b * dim
        for j in range(0, 4 * dim, 4):
            store(line + j, numba.float32(0.0))
        for i in range(edges[b], edges[b + 1]):
            if i + ahead < end:
                prefetch_line(source + 4 * places[i + ahead] * dim, dim)
            scale = scales[i] if scaled else numba.float32(1.0)
            add_scaled(source + 4 * places[i] * dim, line, dim, scale)


@numba.njit(forceinline=True)
@no_type_check
def _row_at(starts, num_rows, place):
    """The row whose occurrences include number `place` of all."""
    low = 0
    high = num_rows
    while low + 1 < high:
        middle = (low + high) // 2
        if starts[middle] <= place:
            low = middle
        else:
            high = middle
    return low


@numba.njit(forceinline=True)
@no_type_check
def _cut(starts, num_rows, block, part, parts):
    """Where a part begins, and its row there: a multiple of `block` after the row's start."""
    n = starts[num_rows]
    if part == parts:
        return n, num_rows
    place = n * part // parts
    row = _row_at(starts, num_rows, place)
    return starts[row] + (place - starts[row]) // block * block, row


@kernel(
    "void(int64, int64, float32[:, ::1], int32[::1], int32[::1], int64, int32[::1], float32[::1],"
    " int64, float32[:, ::1], float32[:, ::1])"
)
@no_type_check
def sum_by_row(part, parts, gradients, order, starts, num_rows, lines, scales, block, out, carried):
    """Sum the gradients of each row's occurrences.

    The occurrences of a row are summed in blocks of fixed size, so that a row with very many of
    them can be cut between threads, and any number of threads sums it in the same order. Blocks of
    the row that an earlier part began go to `carried`, from line cut // block + part on.
    """
    dim = gradients.shape[1]
    source, target, spare = address_of(gradients), address_of(out), address_of(carried)
    sorted_places = address_of(order)
    line_of = address_of(lines) if len(lines) > 0 else 0
    scale_of = address_of(scales) if len(scales) > 0 else 0
    begin, row = _cut(starts, num_rows, block, part, parts)
    end, _ = _cut(starts, num_rows, block, part + 1, parts)
    place = begin
    line = spare + 4 * (begin // block + part) * dim
    is_carried = begin > starts[row]
    while place < end:
        stop = min(starts[row + 1], end)
        if place + _AHEAD < end:
            prefetch_line(line_at(source, dim, sorted_places, place + _AHEAD, line_of), dim)
        total = line if is_carried else target + 4 * row * dim
        edge = min(place + block, stop)
        sum_lines(source, dim, sorted_places, place, edge, line_of, scale_of, total)
        while edge < stop:  # a hot row
            line += 4 * dim
            place = edge
            edge = min(place + block, stop)
            sum_lines(source, dim, sorted_places, place, edge, line_of, scale_of, line)
            if not is_carried:
                add_line(line, total, dim)
        if is_carried:
            line += 4 * dim
            is_carried = False
        place = edge
        row += 1


@kernel("void(int64, int32[::1], int64, int64, float32[:, ::1], float32[:, ::1])")
@no_type_check
def add_carried(parts, starts, num_rows, block, out, carried):
    """Add what parts summed for rows that an earlier part began, in the order of the batch."""
    dim = out.shape[1]
    target, spare = address_of(out), address_of(carried)
    for part in range(1, parts):
        begin, row = _cut(starts, num_rows, block, part, parts)
        end, _ = _cut(starts, num_rows, block, part + 1, parts)
        if begin == starts[row]:
            continue
        line = spare + 4 * (begin // block + part) * dim
        for _ in range(begin, min(starts[row + 1], end), block):
            add_line(line, target + 4 * row * dim, dim)
            line += 4 * dim


@kernel("boolean(uint32[::1])")
@no_type_check
def is_finite(bits):
    """Whether no float32 of these bits is NaN or infinite."""
    exponent = uint32(0x7F800000)
    num_bad = uint32(0)
    for i in range(len(bits)):
        num_bad += uint32((bits[i] & exponent) == exponent)
    return num_bad == 0
