"""Where the pieces of a block of ids begin, by stored pointers or by hashes of the ids.

The starts of a column are neighbours, so that hashes are computed by vector instructions.
"""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import int32, int64, uint16, uint32, uint64

from outsize.kernels.memory_numba import prefetch

_AHEAD = 16  # pointers that are prefetched


@numba.njit(forceinline=True)
@no_type_check
def _mix(word):
    """`outsize.hashing.mix_bits`."""
    word = (word ^ (word >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> uint64(27))) * uint64(0x94D049BB133111EB)
    return word ^ (word >> uint64(31))


@numba.njit(forceinline=True)
@no_type_check
def _hash(mixed, a, b, c):
    """32 bits of a multiply-shift hash of an id that is mixed already."""
    return (a * (mixed & uint64(0xFFFFFFFF)) + b * (mixed >> uint64(32)) + c) >> uint64(32)


@numba.njit(forceinline=True)
@no_type_check
def _find_hashed(ids, words, layout, signed, mixed, starts):
    """Write h_j(id) · stride + layout[5 + j]; its complement if the sign is −1.

    Buckets number at most 2²⁴.
    """
    buckets, stride = uint64(layout[3]), uint64(layout[4])
    num = len(ids)
    for i in range(num):
        mixed[i] = _mix(uint64(ids[i]))
    for j in range(len(layout) - 5):
        a, b, c = uint64(words[j, 0]), uint64(words[j, 1]), uint64(words[j, 2])
        origin = uint64(layout[5 + j])
        line = starts[j]
        for i in range(num):
            pointer = (_hash(mixed[i], a, b, c) * buckets) >> uint64(32)
            line[i] = int32(pointer * stride + origin)
        if signed:
            a, b, c = uint64(words[j, 6]), uint64(words[j, 7]), uint64(words[j, 8])
            for i in range(num):
                line[i] ^= -int32(_hash(mixed[i], a, b, c) >> uint64(31))


@numba.njit(forceinline=True)
@no_type_check
def _find_stored(ids, begin, stop, last, pointers, layout, starts):
    """Write pointer · stride + layout[5 + j], for the pointers stored at the lines `ids`."""
    columns = uint64(len(layout) - 5)
    width, first, stride = layout[1], layout[2], layout[4]
    flat, block = starts.reshape(-1), uint64(starts.shape[1])
    for i in range(begin, stop):
        if i + _AHEAD < last:
            prefetch(pointers, ids[uint64(i + _AHEAD)] * width + first)
        origin = uint64(ids[uint64(i)] * width + first)
        place = uint64(i - begin)
        for j in range(columns):
            start = int64(pointers[origin + j]) * stride + layout[uint64(5) + j]
            flat[place] = int32(start)
            place += block


@numba.njit(forceinline=True)
@no_type_check
def find_starts(ids, begin, stop, last, packed, words, layout, signed, mixed, starts):
    """Find the pieces of one source, by hashes or by pointers of 1, 2, 4 or 8 bytes."""
    num_bytes = layout[0]
    if num_bytes == 0:
        _find_hashed(ids[begin:stop], words, layout, signed, mixed, starts)
    elif num_bytes == 1:
        _find_stored(ids, begin, stop, last, packed, layout, starts)
    elif num_bytes == 2:
        _find_stored(ids, begin, stop, last, packed.view(uint16), layout, starts)
    elif num_bytes == 4:
        _find_stored(ids, begin, stop, last, packed.view(uint32), layout, starts)
    else:
        _find_stored(ids, begin, stop, last, packed.view(int64), layout, starts)
