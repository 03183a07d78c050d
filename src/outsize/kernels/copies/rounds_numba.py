"""What a cache does in a round with other owners of its rows, each in one pass.

Messages are read as `outsize.kernels.exchange.replies_numba` reads them. Slots are those of the
rows of a request; they are negative for rows without a copy. `lines` has the addresses of a
`CopyLines`, in the order of its fields, 0 for none, and `request` those of a `Request`.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numpy import float32, int32, int64, uint8, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.exchange.requests_numba import padded
from outsize.kernels.lines_numba import copy_line, is_zero, put_difference
from outsize.kernels.memory_numba import prefetch, prefetch_line
from outsize.kernels.vectors_numba import address_of, load_int32, store
from outsize.kernels.views_numba import flags_at, int32s_at, int64s_at
from outsize.kernels.wire.whole_numbers_numba import bytes_of_line, decode_line, encode_line

_AHEAD = 8
_LAST = np.iinfo(np.int64).max
_ROWS, _CLOCKS, _TICKS, _PENDING, _SQUARES, _LEFTOVER, _CHECKS, _BALANCE = range(8)
_SLOTS, _STALE, _ASKED, _SEEN, _OUT = range(5)


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64, int64[::1])")
@no_type_check
def due(lines, num_slots, slots, held, bound, found):
    """List slots with more than `bound` ticks; returns their number, −1 if ids do not ascend.

    `held` are the ids in all slots.
    """
    ticks = int32s_at(lines[_TICKS], num_slots)
    n = len(slots)
    num, last = 0, -1
    for i in range(n):
        if i + _AHEAD < n:
            prefetch(ticks, slots[i + _AHEAD])
        if ticks[uint64(slots[i])] > bound:
            row = held[uint64(slots[i])]
            if row <= last:
                return -1
            last = row
            found[num] = slots[i]
            num += 1
    return num


@kernel(
    "void(int64[::1], int64, int64, int64, int64, int64, boolean, int64[::1], int64[::1],"
    " int64[::1], int64[::1], int64, int64)"
)
@no_type_check
def take_pushed(
    lines, num_slots, dim, width, code, saved_bytes, keeps_error, slots, held, ids, counted,
    taken, taken_squares,
):  # fmt: skip
    """Copy what is pending, and clear it but for what the wire format `code` rounds off.

    `taken` and `taken_squares` are the addresses of the copies; `width` is 0 without squares.
    """
    clocks, balance = int64s_at(lines[_CLOCKS], num_slots), int64s_at(lines[_BALANCE], num_slots)
    ticks, leftover = int32s_at(lines[_TICKS], num_slots), flags_at(lines[_LEFTOVER], num_slots)
    sums, squares = lines[_PENDING], lines[_SQUARES]
    n = len(slots)
    message, decoded = np.empty(bytes_of_line(code, dim), uint8), np.empty(dim, float32)
    content, sent = address_of(message), address_of(decoded)
    for i in range(n):
        if i + _AHEAD < n:
            prefetch_line(sums + 4 * dim * slots[i + _AHEAD], dim)
        slot = uint64(slots[i])
        line, total = taken + 4 * dim * i, sums + 4 * dim * slots[i]
        copy_line(total, line, dim)
        encode_line(line, content, dim, code)
        decode_line(content, sent, dim, code)
        put_difference(line, total, dim, sent)
        if keeps_error:
            leftover[slot] = not is_zero(total, dim)
        ids[i] = held[slot]
        counted[i] = int64(ticks[slot])
        if clocks[slot] >= 0:
            clocks[slot] += int64(ticks[slot])
        ticks[slot] = int32(0)
        balance[slot] -= saved_bytes
        if width > 0:
            summed = squares + 4 * width * slots[i]
            copy_line(summed, taken_squares + 4 * width * i, width)
            for j in range(0, 4 * width, 4):
                store(summed + j, float32(0.0))


@kernel("void(int64[::1], int64, int64[::1], int64, int64[::1])")
@no_type_check
def asked_clocks(lines, num_slots, slots, staleness, out):
    """The greatest clocks that copies may have missed; −1 where there is no valid copy."""
    clocks = int64s_at(lines[_CLOCKS], num_slots)
    n = len(slots)
    for i in range(n):
        if i + _AHEAD < n and slots[i + _AHEAD] >= 0:
            prefetch(clocks, slots[i + _AHEAD])
        out[i] = -1
        if slots[i] >= 0 and clocks[uint64(slots[i])] >= 0:
            out[i] = clocks[uint64(slots[i])] + staleness


@kernel(
    "int64(int64[::1], int64[::1], int64, int64, int64, int64[::1], int64[::1], int64, int64,"
    " int64, int64[::1], int64[::1], int64[::1], int64, int64, int64[::1], int64[::1],"
    " boolean[::1], int64[::1], int64[::1])"
)
@no_type_check
def join_pushes(
    due_ids, due_ticks, due_lines, due_squares, width, evicted_ids, evicted_ticks,
    evicted_lines, evicted_squares, dim, other_ids, other_ticks, places, other_lines,
    other_squares, ids, ticks, exact, lines, squares,
):  # fmt: skip
    """Merge three ascending lists of ids; returns the number, or −1 if they share one.

    Of the third list, which may have no squares of its own (address 0), only `places` count. It is
    −1, too, if a row of it has several ticks and no squares. Lines are given by the address of the
    first; `lines` and `squares` get an address per row, 0 for squares of a single batch.
    """
    k, m, n = len(due_ids), len(evicted_ids), len(places)
    a, b, c, num = 0, 0, 0, 0
    while a < k or b < m or c < n:
        first = due_ids[a] if a < k else _LAST
        second = evicted_ids[b] if b < m else _LAST
        third = other_ids[uint64(places[c])] if c < n else _LAST
        least = min(first, second, third)
        if int64(first == least) + int64(second == least) + int64(third == least) > 1:
            return -1
        ids[num], exact[num], squares[num] = least, False, 0
        if first == least:
            ticks[num], lines[num] = due_ticks[a], due_lines + 4 * dim * a
            if width > 0:
                squares[num] = due_squares + 4 * width * a
            a += 1
        elif second == least:
            ticks[num], lines[num] = evicted_ticks[b], evicted_lines + 4 * dim * b
            if width > 0:
                squares[num] = evicted_squares + 4 * width * b
            exact[num] = True
            b += 1
        else:
            place = places[c]
            ticks[num] = other_ticks[uint64(place)]
            lines[num] = other_lines + 4 * dim * place
            if other_squares != 0:
                squares[num] = other_squares + 4 * width * place
            elif width > 0 and ticks[num] > 1:
                return -1
            c += 1
        num += 1
    return num


@kernel(
    "int64(int64, int64[::1], int64, int64[::1], int64, int64[::1], int64[::1], int64[::1],"
    " int64[::1], int64, int32[::1], int64, int64[::1], int64[::1], int64[::1])"
)
@no_type_check
def refresh_from_messages(
    me, lines, num_slots, request, dim, messages, sizes, places, found, code, clocks, table,
    state, widths, dirty,
):  # fmt: skip
    """Read the rows that all ranks sent into copies; rows without a copy go to the reply.

    Rows of this rank, which have no copies, are lines `found` of a table at an address. `state` and
    `widths` are the addresses of the state of copies and its widths. Clocks are written of rows
    without a copy. Lists the copies that have something pending; returns their number.
    """
    n = len(places)
    slots, stale = int64s_at(request[_SLOTS], n), flags_at(request[_STALE], n)
    seen, target = int64s_at(request[_SEEN], n), request[_OUT]
    held, copied_clocks = lines[_ROWS], int64s_at(lines[_CLOCKS], num_slots)
    ticks, leftover = int32s_at(lines[_TICKS], num_slots), flags_at(lines[_LEFTOVER], num_slots)
    size = bytes_of_line(code, dim)
    first, num_dirty = 0, 0
    for rank in range(len(sizes)):
        stop = first + sizes[rank]
        if rank == me:
            for i in range(first, stop):
                if i + _AHEAD < stop:
                    prefetch_line(table + 4 * dim * found[i - first + _AHEAD], dim)
                    prefetch(clocks, found[i - first + _AHEAD])
                row = found[i - first]
                seen[uint64(places[i])] = int64(clocks[uint64(row)])
                copy_line(table + 4 * dim * row, target + 4 * dim * places[i], dim)
            first = stop
            continue
        num = 0
        for i in range(first, stop):
            num += int64(stale[uint64(places[i])])
        clocks_at = messages[rank]
        rows_at = clocks_at + padded(4 * num)
        j = 0
        for i in range(first, stop):
            place = places[i]
            if not stale[uint64(place)]:
                continue
            slot = slots[uint64(place)]
            clock = int64(load_int32(clocks_at + 4 * j))
            if slot < 0:
                seen[uint64(place)] = clock
                decode_line(rows_at + size * j, target + 4 * dim * place, dim, code)
            else:
                copied_clocks[uint64(slot)] = clock
                decode_line(rows_at + size * j, held + 4 * dim * slot, dim, code)
                at = rows_at + padded(size * num)
                for k in range(len(state)):
                    width = 4 * widths[k]
                    copy_line(at + width * j, state[k] + width * slot, widths[k])
                    at += padded(width * num)
                if ticks[uint64(slot)] > 0 or leftover[uint64(slot)]:
                    dirty[num_dirty] = slot
                    num_dirty += 1
            j += 1
        first = stop
    return num_dirty


@kernel(
    "void(int64[::1], int64, int64[::1], int64, int64, int64, int64, int64[:, ::1], int64[::1])"
)
@no_type_check
def finish_read(
    lines, num_slots, request, dim, row_bytes, check_bytes, least_checks, lists, counts
):
    """Read copies, and count the checks of their clocks.

    `lists` gets the places of rows with a copy, their slots, the places of other rows, and the
    slots of copies that cost more than they saved. `counts` gets the length of the first, third
    and fourth list, then the number of valid copies.
    """
    n = lists.shape[1]
    slots, stale = int64s_at(request[_SLOTS], n), flags_at(request[_STALE], n)
    asked, seen = int64s_at(request[_ASKED], n), int64s_at(request[_SEEN], n)
    clocks, balance = int64s_at(lines[_CLOCKS], num_slots), int64s_at(lines[_BALANCE], num_slots)
    ticks, checks = int32s_at(lines[_TICKS], num_slots), int32s_at(lines[_CHECKS], num_slots)
    leftover, held, out = flags_at(lines[_LEFTOVER], num_slots), lines[_ROWS], request[_OUT]
    num_copied, num_others, num_costly, num_hits = 0, 0, 0, 0
    for i in range(n):
        if i + _AHEAD < n and slots[i + _AHEAD] >= 0:
            ahead = slots[i + _AHEAD]
            prefetch_line(held + 4 * dim * ahead, dim)
            prefetch(clocks, ahead)
            prefetch(ticks, ahead)
            prefetch(checks, ahead)
            prefetch(balance, ahead)
        if slots[i] < 0:
            lists[2, num_others] = i
            num_others += 1
            continue
        slot = uint64(slots[i])
        lists[0, num_copied] = i
        lists[1, num_copied] = slots[i]
        num_copied += 1
        seen[i] = clocks[slot] + int64(ticks[slot])
        copy_line(held + 4 * dim * slots[i], out + 4 * dim * i, dim)
        if asked[i] < 0:
            continue
        num_hits += int64(not stale[i])
        count = checks[slot] + int32(1)
        checks[slot] = count
        saved = balance[slot] - check_bytes
        if not stale[i]:
            saved += row_bytes
        balance[slot] = saved
        if count >= least_checks and saved < 0 and ticks[slot] == 0 and not leftover[slot]:
            lists[3, num_costly] = slots[i]
            num_costly += 1
    counts[0] = num_copied
    counts[1] = num_others
    counts[2] = num_costly
    counts[3] = num_hits


@kernel("int64(int64[::1], boolean[::1], int64[::1])")
@no_type_check
def list_new(slots, listed, found):
    """List slots that are not listed; returns their number."""
    n = len(slots)
    num = 0
    for i in range(n):
        if i + _AHEAD < n:
            prefetch(listed, slots[i + _AHEAD])
        slot = uint64(slots[i])
        if not listed[slot]:
            listed[slot] = True
            found[num] = slots[i]
            num += 1
    return num
