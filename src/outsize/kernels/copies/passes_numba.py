"""The passes of `passes`, over the slots of a batch."""

from __future__ import annotations

from typing import no_type_check

from numpy import float32, int32, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.lines_numba import (
    add_and_copy,
    add_and_divide,
    add_line,
    copy_line,
    is_zero,
    put_difference,
)
from outsize.kernels.memory_numba import prefetch, prefetch_line
from outsize.kernels.vectors_numba import address_of

_AHEAD = 8  # copies that are prefetched


@kernel(
    "int64(int64[::1], float32[:, ::1], float32[:, ::1], int64[::1], float32, int64,"
    " float32[:, ::1], float32[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " float32[:, ::1])"
)
@no_type_check
def add_pending(
    slots, gradients, squares, ticks, divisor, saved_bytes,
    pending, pending_squares, balance, places, counted, index, found,
):  # fmt: skip
    """Add gradients to what is pending; write places, ticks and gradients of those with a copy.

    The gradients are divided, or replaced by all that is pending if the divisor is 0.
    """
    n, dim = gradients.shape
    width = squares.shape[1] if len(squares) > 0 and len(pending_squares) > 0 else 0
    added, sums, lines = address_of(gradients), address_of(pending), address_of(found)
    added_squares, sums_of_squares = address_of(squares), address_of(pending_squares)
    num = 0
    for i in range(n):
        if i + _AHEAD < n and slots[i + _AHEAD] >= 0:
            prefetch_line(sums + 4 * dim * slots[i + _AHEAD], dim)
            prefetch(balance, slots[i + _AHEAD])
        if slots[i] < 0:
            continue
        slot = slots[i]
        balance[uint64(slot)] += saved_bytes
        line, total = added + 4 * dim * i, sums + 4 * dim * slot
        if divisor == float32(0.0):
            add_and_copy(line, total, dim, lines + 4 * dim * num)
        else:
            add_and_divide(line, total, dim, lines + 4 * dim * num, divisor)
        add_line(added_squares + 4 * width * i, sums_of_squares + 4 * width * slot, width)
        places[num] = slots[i]
        counted[num] = ticks[i]
        index[num] = i
        num += 1
    return num


@kernel(
    "void(int64[::1], float32[:, ::1], int64[::1], float32[:, ::1], int64, boolean,"
    " int64[::1], int32[::1], float32[:, ::1], float32[:, ::1], boolean[::1], int64[::1])"
)
@no_type_check
def settle(
    slots, gradients, pushed_ticks, sent, saved_bytes, keeps_error,
    clocks, ticks, pending, squares, leftover, balance,
):  # fmt: skip
    """Clear what was pushed, but for the errors of rounding."""
    n, dim = gradients.shape
    width = squares.shape[1] if len(squares) > 0 else 0
    before, after, errors = address_of(gradients), address_of(sent), address_of(pending)
    for i in range(n):
        if i + _AHEAD < n:
            prefetch_line(errors + 4 * dim * slots[i + _AHEAD], dim)
        slot = uint64(slots[i])
        if clocks[slot] >= 0:
            clocks[slot] += pushed_ticks[i]
        ticks[slot] = 0
        balance[slot] -= saved_bytes
        error = errors + 4 * dim * slots[i]
        put_difference(before + 4 * dim * i, error, dim, after + 4 * dim * i)
        if keeps_error:
            leftover[slot] = not is_zero(error, dim)
        for j in range(width):
            squares[slot, j] = 0.0


@kernel(
    "int64(int64[::1], boolean[::1], float32[:, ::1], int64[::1], float32[:, ::1], int64[::1],"
    " int32[::1], boolean[::1], int64[::1])"
)
@no_type_check
def refresh(slots, stale, sent, sent_clocks, rows, clocks, ticks, leftover, dirty):
    """Replace stale copies; returns the number of those with something pending."""
    dim = rows.shape[1]
    sources, targets = address_of(sent), address_of(rows)
    line = 0
    num = 0
    for i in range(len(slots)):
        if not stale[i]:
            continue
        if slots[i] >= 0:
            slot = uint64(slots[i])
            clocks[slot] = sent_clocks[line]
            copy_line(sources + 4 * dim * line, targets + 4 * dim * slots[i], dim)
            if ticks[slot] > 0 or leftover[slot]:
                dirty[num] = slots[i]
                num += 1
        line += 1
    return num


@kernel("void(int64[::1], boolean[::1], float32[:, ::1], float32[:, ::1])")
@no_type_check
def copy_lines(slots, stale, sent, lines):
    """Copy what was sent to the slots of stale copies."""
    width = lines.shape[1]
    sources, targets = address_of(sent), address_of(lines)
    line = 0
    for i in range(len(slots)):
        if stale[i]:
            if slots[i] >= 0:
                copy_line(sources + 4 * width * line, targets + 4 * width * slots[i], width)
            line += 1


@kernel(
    "void(int64[::1], boolean[::1], float32[:, ::1], int64[::1], float32[:, ::1], int64[::1],"
    " int32[::1], float32[:, ::1], int64[::1])"
)
@no_type_check
def read(slots, stale, sent, sent_clocks, rows, clocks, ticks, out, seen):
    """Rows and clocks: of copies, and of rows without a copy as they were sent."""
    n = len(slots)
    dim = rows.shape[1]
    held, others, found = address_of(rows), address_of(sent), address_of(out)
    line = 0
    for i in range(n):
        if i + _AHEAD < n and slots[i + _AHEAD] >= 0:
            prefetch_line(held + 4 * dim * slots[i + _AHEAD], dim)
            prefetch(clocks, slots[i + _AHEAD])
            prefetch(ticks, slots[i + _AHEAD])
        if slots[i] >= 0:
            slot = uint64(slots[i])
            seen[i] = clocks[slot] + ticks[slot]
            copy_line(held + 4 * dim * slots[i], found + 4 * dim * i, dim)
        else:
            seen[i] = sent_clocks[line]
            copy_line(others + 4 * dim * line, found + 4 * dim * i, dim)
        if stale[i]:
            line += 1


@kernel("void(int64[::1], int64[::1], int64[::1])")
@no_type_check
def held_clocks(slots, clocks, out):
    """Clocks of copies, or −1."""
    n = len(slots)
    for i in range(n):
        if i + _AHEAD < n and slots[i + _AHEAD] >= 0:
            prefetch(clocks, slots[i + _AHEAD])
        out[i] = clocks[uint64(slots[i])] if slots[i] >= 0 else -1


@kernel(
    "int64(int64[::1], boolean[::1], boolean[::1], int64, int64, int64, int32[::1], int64[::1],"
    " int32[::1], boolean[::1], int64[::1])"
)
@no_type_check
def count_checks(
    slots, was_held, stale, row_bytes, check_bytes, least_checks,
    checks, balance, ticks, leftover, costly,
):  # fmt: skip
    """Count checks of copies; returns the number of clean ones that cost more than they saved."""
    num = 0
    for i in range(len(slots)):
        if not was_held[i]:
            continue
        slot = uint64(slots[i])
        count = checks[slot] + int32(1)
        checks[slot] = count
        saved = balance[slot] - check_bytes
        if not stale[i]:
            saved += row_bytes
        balance[slot] = saved
        if count >= least_checks and saved < 0 and ticks[slot] == 0 and not leftover[slot]:
            costly[num] = slots[i]
            num += 1
    return num
