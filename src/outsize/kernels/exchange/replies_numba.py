"""Replies of a round: compared, written and read for all ranks in one pass each.

The format is that of `outsize.stores.packing`; messages are given by their addresses.
"""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np
from numpy import int32, int64, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.exchange.requests_numba import (
    begin_section,
    padded,
    position_of,
    read_position,
)
from outsize.kernels.lines_numba import copy_line
from outsize.kernels.memory_numba import prefetch, prefetch_line
from outsize.kernels.vectors_numba import address_of, load_int32
from outsize.kernels.wire.whole_numbers_numba import (
    bytes_of_line,
    decode_line,
    encode_line,
    load_int8,
    store_int8,
    store_int32,
)

_AHEAD = 8
_MOST_INT32 = (1 << 31) - 1
_LEAST = np.iinfo(np.int64).min


@kernel(
    "int64(int64, int64, int64, int64[:, ::1], int64[:, ::1], int64[::1], int64[::1], int64[::1],"
    " boolean, int32[::1], int64[::1], int64[::1], int64[::1], int64[::1], boolean[::1])"
)
@no_type_check
def compare(
    me, num_owners, id_bytes, numbers, sections, asked, places, asked_clocks, has_clocks, clocks,
    targets, found, sent, behind, own_flags,
):  # fmt: skip
    """Find the rows to send to each rank, and write the flags that say so; returns their number.

    `asked` and `asked_clocks` are of this rank's request, in which its own rows are at `places`.
    """
    num_ranks = len(numbers)
    num = 0
    for rank in range(num_ranks):
        first, worst, bits = num, _LEAST, 0
        section = sections[2 * num_ranks + rank]
        count = numbers[rank, 2]
        for i in range(count):
            if rank == me:
                position = position_of(asked[places[i]], num_owners)
            else:
                position = read_position(section[0], i, id_bytes)
            is_sent = True
            if has_clocks:
                if rank == me:
                    clock = asked_clocks[places[i]]
                else:
                    clock = int64(load_int32(section[1] + 4 * i))
                    if i + _AHEAD < count:
                        prefetch(clocks, read_position(section[0], i + _AHEAD, id_bytes))
                if clock >= 0:  # every clock is greater than a negative one
                    ahead = int64(clocks[uint64(position)]) - clock
                    is_sent = ahead > 0
                    if not is_sent:
                        worst = max(worst, ahead)
                if rank == me:
                    own_flags[i] = is_sent
                else:
                    bits |= int64(is_sent) << (i & 7)
                    if i & 7 == 7 or i == count - 1:
                        store_int8(targets[rank] + 8 + (i >> 3), numba.int8(bits))
                        bits = 0
            if is_sent:
                found[num] = position
                num += 1
        sent[rank] = num - first
        behind[rank] = worst
        if has_clocks and rank != me:
            lag = -_MOST_INT32 - 1 if worst == _LEAST else max(worst, -_MOST_INT32)
            store_int32(targets[rank], int32(lag))
    return num


@kernel(
    "void(int64, int64, int64[::1], int64[::1], int32[::1], float32[:, ::1], int64,"
    " float32[:, ::1], float32[:, ::1], float32[:, ::1], int64[::1])"
)
@no_type_check
def write_rows(me, num_states, sent, found, clocks, rows, code, one, two, three, targets):
    """Write the clocks, rows and state that each rank is sent."""
    dim = rows.shape[1]
    table, size = address_of(rows), bytes_of_line(code, rows.shape[1])
    first = 0
    for rank in range(len(sent)):
        num = sent[rank]
        if rank != me and num > 0:
            at = targets[rank]
            end = begin_section(at, 4 * num)
            for i in range(num):
                store_int32(at + 4 * i, clocks[uint64(found[first + i])])
            at = end
            end = begin_section(at, size * num)
            for i in range(num):
                if i + _AHEAD < num:
                    prefetch_line(table + 4 * dim * found[first + i + _AHEAD], dim)
                encode_line(table + 4 * dim * found[first + i], at + size * i, dim, code)
            at = end
            if num_states > 0:
                at = _write_state(at, num, found, first, address_of(one), one.shape[1])
            if num_states > 1:
                at = _write_state(at, num, found, first, address_of(two), two.shape[1])
            if num_states > 2:
                at = _write_state(at, num, found, first, address_of(three), three.shape[1])
        first += num


@numba.njit(forceinline=True)
@no_type_check
def _write_state(at, num, found, first, state, width):
    end = begin_section(at, 4 * width * num)
    for i in range(num):
        copy_line(state + 4 * width * found[first + i], at + 4 * width * i, width)
    return end


@kernel(
    "int64(int64, int64[::1], int64[::1], int64[::1], boolean[::1], boolean[::1], int64[::1],"
    " int64[::1])"
)
@no_type_check
def read_flags(me, messages, sizes, places, own_flags, stale, lines, sent):
    """Read which rows are sent, and find their lines; returns the worst lag of the others."""
    worst = _LEAST
    first = 0
    for rank in range(len(sizes)):
        num = 0
        for i in range(sizes[rank]):
            if rank == me:
                flag = own_flags[i]
            else:
                flag = (load_int8(messages[rank] + 8 + (i >> 3)) >> (i & 7)) & 1 == 1
            stale[uint64(places[first + i])] = flag
            num += flag
        if rank != me:
            lag = int64(load_int32(messages[rank]))
            if lag != -_MOST_INT32 - 1:
                worst = max(worst, lag)
        sent[rank] = num
        first += sizes[rank]
    num = 0
    for i in range(len(stale)):
        lines[i] = num
        num += stale[i]
    return worst


@kernel(
    "void(int64, int64, int64[::1], int64[::1], int64[::1], boolean[::1], int64[::1],"
    " int64[::1], int64, int32[::1], float32[:, ::1], float32[:, ::1], float32[:, ::1],"
    " float32[:, ::1], int64[::1], float32[:, ::1], float32[:, ::1], float32[:, ::1],"
    " float32[:, ::1])"
)
@no_type_check
def read_rows(
    me, num_states, messages, sizes, places, stale, lines, found, code, clocks, rows, one, two,
    three, new_clocks, new_rows, new_one, new_two, new_three,
):  # fmt: skip
    """Put what all ranks sent, and this rank's own rows in `found`, where they belong.

    `stale` and `lines` are empty if all rows are sent.
    """
    dim = new_rows.shape[1]
    size, target, table = bytes_of_line(code, dim), address_of(new_rows), address_of(rows)
    first, own = 0, 0
    for rank in range(len(sizes)):
        stop = first + sizes[rank]
        num = sizes[rank]
        if len(stale) > 0:
            num = 0
            for i in range(first, stop):
                num += stale[uint64(places[i])]
        clocks_at = messages[rank]
        rows_at = clocks_at + padded(4 * num)
        one_at = rows_at + padded(size * num)
        two_at = one_at + padded(4 * one.shape[1] * num)
        three_at = two_at + padded(4 * two.shape[1] * num)
        j = 0
        for i in range(first, stop):
            place = places[i]
            if len(stale) > 0:
                if not stale[uint64(place)]:
                    continue
                place = lines[uint64(place)]
            if rank == me:
                row = found[own + j]
                if j + _AHEAD < num:
                    prefetch_line(table + 4 * dim * found[own + j + _AHEAD], dim)
                new_clocks[place] = clocks[uint64(row)]
                copy_line(table + 4 * dim * row, target + 4 * dim * place, dim)
                if num_states > 0:
                    _copy(address_of(one), row, address_of(new_one), place, one.shape[1])
                if num_states > 1:
                    _copy(address_of(two), row, address_of(new_two), place, two.shape[1])
                if num_states > 2:
                    _copy(address_of(three), row, address_of(new_three), place, three.shape[1])
            else:
                new_clocks[place] = int64(load_int32(clocks_at + 4 * j))
                decode_line(rows_at + size * j, target + 4 * dim * place, dim, code)
                if num_states > 0:
                    _copy(one_at, j, address_of(new_one), place, one.shape[1])
                if num_states > 1:
                    _copy(two_at, j, address_of(new_two), place, two.shape[1])
                if num_states > 2:
                    _copy(three_at, j, address_of(new_three), place, three.shape[1])
            j += 1
        first = stop


@numba.njit(forceinline=True)
@no_type_check
def _copy(source, row, target, place, width):
    copy_line(source + 4 * width * row, target + 4 * width * place, width)
