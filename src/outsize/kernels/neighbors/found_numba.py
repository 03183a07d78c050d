"""A hash table of nodes and their numbers, probed linearly and at most half full.

An entry is a word: the lower half of a node's id, then its number plus one; 0 is empty.
"""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import int64, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.memory_numba import prefetch

_AHEAD = 16  # ids whose entries are prefetched


@numba.njit(forceinline=True)
@no_type_check
def _home(value, shift):
    return int64((uint64(value) * uint64(0x9E3779B97F4A7C15)) >> shift)


@numba.njit(forceinline=True)
@no_type_check
def _shift(size):
    shift = 64
    while size > 1:
        size //= 2
        shift -= 1
    return uint64(shift)


@kernel(
    "int64(uint64[::1], int64[::1], int64[::1], boolean, Array(int64, 1, 'C', readonly=True),"
    " int64, int64[::1])"
)
@no_type_check
def number_nodes(entries, ids, num_found, wide, values, first, positions):
    """Write the number of each value from `first` on; those not found yet get the next numbers.

    `ids` are the nodes found so far, `num_found[0]` of them. `wide` says that ids may not fit into
    32 bits, and are compared with `ids`. Returns the index of the first value for which there was
    no room, or the number of values.
    """
    n = len(values)
    size = len(entries)
    mask = size - 1
    most = min(size // 2, len(ids))
    shift = _shift(size)
    low = uint64(0xFFFFFFFF)
    half = uint64(32)
    num = num_found[0]
    stop = n
    for i in range(first, n):
        if i + _AHEAD < n:
            prefetch(entries, _home(values[i + _AHEAD], shift))
        value = values[i]
        tag = uint64(value) & low
        slot = _home(value, shift)
        while True:
            entry = entries[slot]
            if entry == 0:
                break
            if (entry >> half) == tag:
                found = int64(entry & low) - 1
                if not wide or ids[found] == value:
                    break
            slot = (slot + 1) & mask
        if entry == 0:
            if num == most:
                stop = i
                break
            ids[num] = value
            positions[i] = num
            num += 1
            entries[slot] = (tag << half) | uint64(num)
        else:
            positions[i] = int64(entry & low) - 1
    num_found[0] = num
    return stop


@kernel("void(uint64[::1], int64[::1], int64)")
@no_type_check
def index_nodes(entries, ids, num_found):
    """Enter the nodes found so far into an empty table."""
    size = len(entries)
    mask = size - 1
    shift = _shift(size)
    for i in range(num_found):
        slot = _home(ids[i], shift)
        while entries[slot] != 0:
            slot = (slot + 1) & mask
        entries[slot] = ((uint64(ids[i]) & uint64(0xFFFFFFFF)) << uint64(32)) | uint64(i + 1)
