"""`distinct` by a radix sort of ids with their places."""

from __future__ import annotations

from typing import no_type_check

from numpy import int32, int64, uint32, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.vectors_numba import load_int64

_TILE = 64  # examples, whose ids of all columns fit a first-level cache


@kernel(
    "int64(int64[::1], int64, int64, uint32[:, ::1], uint64[::1], uint64[::1],"
    " int64[::1], int64[::1], int32[::1], int32[::1])"
)
@no_type_check
def distinct_ids(ids, digit_bits, num_digits, counts, keys, spare, unique, inverse, order, starts):
    """Sort ids, number the distinct ones, and list the places of each in order.

    Ids are below 2^(digit_bits · num_digits) and below 2³². `counts` has a line of 2^digit_bits
    elements per digit; `keys` and `spare` are as long as `ids`, and hold an id in the upper and its
    place in the lower half of a word. Returns the number of distinct ids.
    """
    n = len(ids)
    half = uint64(32)
    size = 1 << digit_bits
    mask = uint64(size - 1)
    counts[:num_digits] = 0
    for i in range(n):  # count all digits in the pass that makes the words
        value = uint64(ids[i])
        keys[i] = (value << half) | uint64(i)
        for digit in range(num_digits):
            counts[digit, value & mask] += uint32(1)
            value >>= uint64(digit_bits)
    source = keys
    target = spare
    for digit in range(num_digits):
        shift = half + uint64(digit * digit_bits)
        own = counts[digit]
        total = uint32(0)
        for bucket in range(size):
            count = own[bucket]
            own[bucket] = total
            total += count
        for i in range(n):
            word = source[i]
            bucket = (word >> shift) & mask
            place = own[bucket]
            target[uint64(place)] = word
            own[bucket] = place + uint32(1)
        source, target = target, source
    found = -1
    last = uint64(0xFFFFFFFFFFFFFFFF)
    starts[0] = 0
    for i in range(n):  # without a branch on whether an id is new, which cannot be predicted
        word = source[i]
        value = word >> half
        place = word & uint64(0xFFFFFFFF)
        found += int64(value != last)
        last = value
        unique[found] = int64(value)
        starts[found + 1] = i + 1
        inverse[place] = found
        order[i] = int32(place)
    return found + 1


@kernel("boolean(int64[::1], int64[::1], int64[::1], int64[::1])")
@no_type_check
def add_offsets(columns, bounds, offsets, out):
    """Write ids + offsets of their column, by example; returns whether all were in 0 … bound − 1.

    `columns` are the addresses of equally many ids each.
    """
    width = len(columns)
    num_bad = 0
    for first in range(0, len(out) // width, _TILE):
        for j in range(width):
            column, bound, offset = columns[j], uint64(bounds[j]), offsets[j]
            for i in range(first, min(first + _TILE, len(out) // width)):
                value = load_int64(column + 8 * i)
                num_bad += uint64(value) >= bound  # a negative id is a very large one
                out[i * width + j] = value + offset
    return num_bad == 0
