"""The passes of `routes` and `sums`."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numpy import float32, int32, int64, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.lines_numba import add_line, copy_line, divide_line, start_sum
from outsize.kernels.memory_numba import prefetch, prefetch_line
from outsize.kernels.rows.squares_numba import put_squares
from outsize.kernels.vectors_numba import address_of

_AHEAD = 8
_LEAST = np.iinfo(np.int64).min


@kernel("void(int64[::1], int64, int64[::1], int64[::1])")
@no_type_check
def by_owner(ids, num_owners, counts, order):
    """Count the ids of each owner, and write their places owner by owner."""
    n = len(ids)
    mask = num_owners - 1
    is_power = num_owners & mask == 0
    divisor = uint64(num_owners)
    for i in range(n):
        owner = ids[i] & mask if is_power else int64(uint64(ids[i]) % divisor)
        counts[owner] += 1
    starts = np.empty(len(counts), int64)
    start = 0
    for owner in range(len(counts)):
        starts[owner] = start
        start += counts[owner]
    for i in range(n):
        owner = ids[i] & mask if is_power else int64(uint64(ids[i]) % divisor)
        order[starts[owner]] = i
        starts[owner] += 1


@kernel(
    "int64(int32[::1], int64[::1], int64[::1], int64[::1], boolean[::1], int64[::1], int64[::1],"
    " int64[::1])"
)
@no_type_check
def newer_rows(clocks, places, asked, ends, stale, found, sent, behind):
    """Compare clocks request by request; returns the number of rows with a greater one."""
    n = len(places)
    num = 0
    i = 0
    for request in range(len(ends)):
        first = num
        worst = _LEAST
        while i < ends[request]:
            if i + _AHEAD < n:
                prefetch(clocks, places[i + _AHEAD])
            ahead = int64(clocks[uint64(places[i])]) - asked[i]
            stale[i] = ahead > 0
            if ahead > 0:
                found[num] = places[i]
                num += 1
            else:
                worst = max(worst, ahead)
            i += 1
        sent[request] = num - first
        behind[request] = worst
    return num


@kernel("int64(int64[::1], boolean[::1], boolean[::1], int64[::1], int64[::1])")
@no_type_check
def in_order(order, stale, flags, starts, lines):
    """Write flags in the order of the request, and the lines of what was sent."""
    n = len(order)
    for i in range(n):
        flags[uint64(order[i])] = stale[i]
    num = 0
    for i in range(n):
        starts[i] = num
        num += int64(flags[i])
    num = 0
    for i in range(n):
        if stale[i]:
            lines[num] = starts[uint64(order[i])]
            num += 1
    return num


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int32[::1])")
@no_type_check
def union(ids, ends, found, places, counts):
    """Merge ascending lists, given where each ends; returns the number of distinct ids."""
    k = len(ends)
    heads = np.empty(k, int64)
    for part in range(k):
        heads[part] = ends[part - 1] if part else 0
    num = 0
    left = len(ids)
    while left > 0:
        least = np.iinfo(np.int64).max
        for part in range(k):
            if heads[part] < ends[part]:
                least = min(least, ids[heads[part]])
        count = 0
        for part in range(k):
            head = heads[part]
            if head < ends[part] and ids[head] == least:
                places[head] = num
                heads[part] = head + 1
                count += 1
        found[num] = least
        counts[num] = int32(count)
        left -= count
        num += 1
    return num


@kernel("void(float32[:, ::1], int64[::1], float32, int32[::1], float32[:, ::1])")
@no_type_check
def add_lines(part, places, divisor, left, total):
    """Add lines to their totals, which are divided after the last one.

    `left` has the number of lines of each total: n before the first one, 1 − n after it, …, 0.
    """
    n, width = part.shape
    lines, totals = address_of(part), address_of(total)
    for i in range(n):
        if i + _AHEAD < n:
            prefetch_line(totals + 4 * width * places[i + _AHEAD], width)
        place = uint64(places[i])
        line, target = lines + 4 * width * i, totals + 4 * width * places[i]
        if left[place] > 0:
            left[place] = int32(1) - left[place]
            start_sum(line, target, width)
        else:
            left[place] += int32(1)
            add_line(line, target, width)
        if left[place] == 0 and divisor != float32(1.0):
            divide_line(target, target, width, divisor)


@kernel(
    "int64(int64[::1], int64[::1], float32[:, ::1], float32[:, ::1], int64[::1], int64[::1],"
    " float32[:, ::1], float32[:, ::1], int64, int64[::1], int64[::1], float32[:, ::1],"
    " float32[:, ::1], int64[::1], int64[::1])"
)
@no_type_check
def add_two(
    ids, ticks, lines, squares, other_ids, other_ticks, other_lines, other_squares, kind,
    found, counted, total, total_squares, places, other_places,
):  # fmt: skip
    """Add two lists of ascending ids; returns the number of distinct ids.

    `total_squares` has lines if squares are added, too: those given, or else of the lines.
    """
    n, m, dim, width = len(ids), len(other_ids), total.shape[1], total_squares.shape[1]
    has_squares = len(total_squares) > 0
    first, second, target = address_of(lines), address_of(other_lines), address_of(total)
    sums = address_of(total_squares)
    line_of_squares = np.empty(width, float32)
    i, j, num = 0, 0, 0
    while i < n or j < m:
        takes_first = i < n and (j == m or ids[i] <= other_ids[j])
        takes_second = j < m and (i == n or other_ids[j] <= ids[i])
        at, square = target + 4 * dim * num, sums + 4 * width * num
        count = 0
        if takes_first:
            found[num] = ids[i]
            count += ticks[i]
            line = first + 4 * dim * i
            start_sum(line, at, dim)
            if has_squares:
                if len(squares) > 0:
                    start_sum(address_of(squares) + 4 * width * i, square, width)
                else:
                    put_squares(line, square, dim, kind)
            places[i] = num
            i += 1
        if takes_second:
            found[num] = other_ids[j]
            count += other_ticks[j]
            line = second + 4 * dim * j
            if takes_first:
                add_line(line, at, dim)
            else:
                start_sum(line, at, dim)
            if has_squares:
                own = address_of(line_of_squares)
                if len(other_squares) > 0:
                    own = address_of(other_squares) + 4 * width * j
                else:
                    put_squares(line, own, dim, kind)
                if takes_first:
                    add_line(own, square, width)
                else:
                    start_sum(own, square, width)
            other_places[j] = num
            j += 1
        counted[num] = count
        num += 1
    return num


@kernel("void(float32[:, ::1], int64[::1], float32[:, ::1])")
@no_type_check
def put_lines(values, places, lines):
    """Copy values to lines."""
    n, width = values.shape
    sources, targets = address_of(values), address_of(lines)
    for i in range(n):
        copy_line(sources + 4 * width * i, targets + 4 * width * places[i], width)
