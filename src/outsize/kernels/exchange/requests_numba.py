"""Requests of a round: written for all owners in one pass, and merged by their owner in another.

The format is that of `outsize.stores.packing`; messages are given by their addresses. Of two lists
per rank, the first has the rows that travel by the wire, the second those by the finer one.
"""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np
from numpy import float32, int32, int64, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.lines_numba import add_line, copy_line, divide_line, start_sum
from outsize.kernels.memory_numba import prefetch_line
from outsize.kernels.rows.squares_numba import put_squares
from outsize.kernels.vectors_numba import (
    address_of,
    load_int32,
    load_int64,
)
from outsize.kernels.wire.whole_numbers_numba import (
    bytes_of_line,
    decode_line,
    encode_line,
    store_int32,
    store_int64,
)

_AHEAD = 8
_LAST = np.iinfo(np.int64).max
_MOST_INT32 = (1 << 31) - 1


@numba.njit(forceinline=True)
@no_type_check
def padded(size):
    """The size of a section of `size` bytes with its padding."""
    return (size + 7) & ~7


@numba.njit(forceinline=True)
@no_type_check
def owner_of(row, num_owners):
    """The rank that owns a row."""
    if num_owners & (num_owners - 1) == 0:
        return row & (num_owners - 1)
    return int64(uint64(row) % uint64(num_owners))


@numba.njit(forceinline=True)
@no_type_check
def position_of(row, num_owners):
    """The position of a row within its owner's shard."""
    return int64(uint64(row) // uint64(num_owners))


@kernel("void(int64[::1], int64[::1], boolean[::1], int64, int64[::1], int64[::1], int64[::1])")
@no_type_check
def route(ids, ticks, exact, num_owners, counts, several, order):
    """Count the rows of each list, and those with several ticks; write their places in order."""
    n = len(ids)
    for i in range(n):
        part = 2 * owner_of(ids[i], num_owners)
        if len(exact) > 0 and exact[i]:
            part += 1
        counts[part] += 1
        several[part] += ticks[i] > 1
    starts = np.empty(len(counts), int64)
    start = 0
    for part in range(len(counts)):
        starts[part] = start
        start += counts[part]
    for i in range(n):
        part = 2 * owner_of(ids[i], num_owners)
        if len(exact) > 0 and exact[i]:
            part += 1
        order[starts[part]] = i
        starts[part] += 1


@numba.njit(forceinline=True)
@no_type_check
def begin_section(at, size):
    """Clear the padding of a section; returns the address after it."""
    stop = at + padded(size)
    if size > 0:
        store_int64(stop - 8, 0)
    return stop


@numba.njit(forceinline=True)
@no_type_check
def _write_ids(at, ids, places, first, stop, num_owners, id_bytes):
    end = begin_section(at, id_bytes * (stop - first))
    for i in range(first, stop):
        position = position_of(ids[places[i]], num_owners)
        if id_bytes == 4:
            store_int32(at + 4 * (i - first), int32(position))
        else:
            store_int64(at + 8 * (i - first), position)
    return end


@kernel(
    "void(int64[::1], int64, int64, int64, int64, int64, int64, boolean, int64[::1], int64[::1],"
    " int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[::1])"
)
@no_type_check
def write_requests(
    targets, num_owners, id_bytes, coarse, fine, dim, width, is_sum, ids, ticks, order, lines,
    squares, counts, asked, places, clocks, sizes,
):  # fmt: skip
    """Write the request to each rank, except to those whose address is 0.

    `lines` and `squares` are the addresses of gradients and their squares; with `is_sum`, a
    gradient is 0 + its line. `asked` are the rows that are read, `places` their order and `sizes`
    their number per rank.
    """
    start, first = 0, 0
    for receiver in range(len(targets)):
        at = targets[receiver]
        for part in range(2):
            num = counts[2 * receiver + part]
            stop = start + num
            if at != 0 and num > 0:
                at = _write_ids(at, ids, order, start, stop, num_owners, id_bytes)
                end = begin_section(at, 4 * num)
                several = 0
                for i in range(start, stop):
                    count = ticks[order[i]]
                    several += count > 1
                    store_int32(at + 4 * (i - start), int32(count))
                at = end
                code = coarse if part == 0 else fine
                size = bytes_of_line(code, dim)
                end = begin_section(at, size * num)
                for i in range(start, stop):
                    if i + _AHEAD < stop:
                        prefetch_line(lines[order[i + _AHEAD]], dim)
                    target = at + size * (i - start)
                    if is_sum and code == 4:
                        start_sum(lines[order[i]], target, dim)
                    else:
                        encode_line(lines[order[i]], target, dim, code)
                at = end
                if len(squares) > 0 and several > 0:
                    end = begin_section(at, 4 * width * several)
                    for i in range(start, stop):
                        if ticks[order[i]] > 1:
                            copy_line(squares[order[i]], at, width)
                            at += 4 * width
                    at = end
            start = stop
        last = first + sizes[receiver]
        if at != 0:
            at = _write_ids(at, asked, places, first, last, num_owners, id_bytes)
            if len(clocks) > 0:
                begin_section(at, 4 * (last - first))
                for i in range(first, last):
                    clock = min(clocks[places[i]], _MOST_INT32)
                    store_int32(at + 4 * (i - first), int32(clock))
        first = last


@kernel("int64(int64[::1], int64[:, ::1], int64, int64, int64, int64, int64, int64[:, ::1])")
@no_type_check
def read_sections(messages, numbers, id_bytes, dim, width, coarse, fine, sections):
    """Find the sections of requests; returns the number of pushed rows with several ticks.

    Line 2·rank + k of `sections` has, of list k of a rank, the addresses of ids, ticks, gradients
    and squares; line 2·ranks + rank those of the ids that are read and of their clocks.
    """
    num_ranks = len(messages)
    total = 0
    for rank in range(num_ranks):
        at = messages[rank]
        if at == 0:
            continue
        for part in range(2):
            num = numbers[rank, part]
            line = sections[2 * rank + part]
            line[0] = at
            line[1] = line[0] + padded(id_bytes * num)
            line[2] = line[1] + padded(4 * num)
            line[3] = line[2] + padded(bytes_of_line(coarse if part == 0 else fine, dim) * num)
            several = 0
            for i in range(num):
                several += load_int32(line[1] + 4 * i) > 1
            at = line[3] + padded(4 * width * several)
            total += several
        line = sections[2 * num_ranks + rank]
        line[0] = at
        line[1] = at + padded(id_bytes * numbers[rank, 2])
    return total


@numba.njit(forceinline=True)
@no_type_check
def read_position(at, i, id_bytes):
    """Position i of a section of ids."""
    return int64(load_int32(at + 4 * i)) if id_bytes == 4 else load_int64(at + 8 * i)


@kernel(
    "int64(int64, int64, int64, int64, int64, int64[:, ::1], int64[:, ::1], int64[::1],"
    " int64[::1], int64[::1], int64[::1], int64[::1], boolean, int64, float32, int64[::1],"
    " int64[::1], float32[:, ::1], float32[:, ::1])"
)
@no_type_check
def merge_pushes(
    me, num_owners, id_bytes, coarse, fine, numbers, sections, order, ids, ticks, lines, squares,
    adds, kind, divisor, places, counted, mean, found_squares,
):  # fmt: skip
    """Add what all ranks push, in the order of ranks, and divide; returns the number of rows.

    Squares are found if `found_squares` has lines: Σ g² / N² where a rank pushed several batches of
    a row, else the square of the mean. `adds` says whether sums start at 0. `order` has the places
    of this rank's own rows, `lines` the addresses of their gradients, and `squares` those of their
    squares, 0 if they are to be found.
    """
    num_lists, dim, width = 2 * len(numbers), mean.shape[1], found_squares.shape[1]
    has_squares = len(found_squares) > 0
    heads, fronts = np.zeros(num_lists, int64), np.empty(num_lists, int64)
    lengths, taken = np.empty(num_lists, int64), np.zeros(num_lists, int64)
    firsts = np.zeros(num_lists, int64)
    firsts[2 * me + 1] = numbers[me, 0]
    for part in range(num_lists):
        lengths[part] = numbers[part // 2, part % 2]
        fronts[part] = _LAST
        if lengths[part] > 0:
            if part // 2 == me:
                fronts[part] = position_of(ids[order[firsts[part]]], num_owners)
            else:
                fronts[part] = read_position(sections[part, 0], 0, id_bytes)
    scratch = np.empty(dim, float32)
    line_in_scratch = address_of(scratch)
    square_of_line = np.empty(max(width, 1), float32)
    square_in_scratch = address_of(square_of_line)
    totals, totals_of_squares = address_of(mean), address_of(found_squares)
    num = 0
    while True:
        least = _LAST
        for part in range(num_lists):
            least = min(least, fronts[part])
        if least == _LAST:
            return num
        target, target_of_squares = totals + 4 * dim * num, totals_of_squares + 4 * width * num
        count = 0
        is_first, is_sum = True, False
        for part in range(num_lists):
            if fronts[part] != least:
                continue
            i = heads[part]
            heads[part] = i + 1
            is_last = i + 1 == lengths[part]
            square = 0
            if part // 2 == me:
                place = order[firsts[part] + i]
                batches = ticks[place]
                line = lines[place]
                if len(squares) > 0:
                    square = squares[place]
                fronts[part] = _LAST
                if not is_last:
                    fronts[part] = position_of(ids[order[firsts[part] + i + 1]], num_owners)
                    if i + _AHEAD < lengths[part]:
                        prefetch_line(lines[order[firsts[part] + i + _AHEAD]], dim)
            else:
                batches = int64(load_int32(sections[part, 1] + 4 * i))
                code = coarse if part % 2 == 0 else fine
                line = sections[part, 2] + bytes_of_line(code, dim) * i
                if code != 4:
                    decode_line(line, line_in_scratch, dim, code)
                    line = line_in_scratch
                if batches > 1 and has_squares:
                    square = sections[part, 3] + 4 * width * taken[part]
                    taken[part] += 1
                fronts[part] = _LAST
                if not is_last:
                    fronts[part] = read_position(sections[part, 0], i + 1, id_bytes)
            count += batches
            is_sum = is_sum or batches > 1
            if not is_first:
                add_line(line, target, dim)
            elif adds:
                start_sum(line, target, dim)
            else:
                copy_line(line, target, dim)
            if has_squares:
                if square == 0:
                    square = square_in_scratch
                    put_squares(line, square, dim, kind)
                if is_first:
                    start_sum(square, target_of_squares, width)
                else:
                    add_line(square, target_of_squares, width)
            is_first = False
        if divisor != float32(1.0):
            divide_line(target, target, dim, divisor)
        if has_squares:
            if is_sum:
                divide_line(target_of_squares, target_of_squares, width, divisor * divisor)
            else:
                put_squares(target, target_of_squares, dim, kind)
        places[num] = least
        counted[num] = count
        num += 1
