"""The passes of `routes` and `sums`."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numpy import float32, int32, int64, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.memory_numba import prefetch, prefetch_row

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
    for i in range(n):
        if i + _AHEAD < n:
            prefetch_row(total, places[i + _AHEAD], width)
        place = uint64(places[i])
        if left[place] > 0:
            left[place] = int32(1) - left[place]
            for j in range(width):
                total[place, j] = float32(0.0) + part[i, j]
        else:
            left[place] += int32(1)
            for j in range(width):
                total[place, j] += part[i, j]
        if left[place] == 0 and divisor != float32(1.0):
            for j in range(width):
                total[place, j] /= divisor


@kernel("void(float32[:, ::1], int64[::1], float32[:, ::1])")
@no_type_check
def put_lines(values, places, lines):
    """Copy values to lines."""
    n, width = values.shape
    for i in range(n):
        place = uint64(places[i])
        for j in range(width):
            lines[place, j] = values[i, j]
