"""`distinct` by a radix sort of ids with their places."""

from __future__ import annotations

from typing import no_type_check

from numpy import int32, int64, uint32, uint64

from outsize.kernels.compiled import kernel


@kernel(
    "int64(int64[::1], int64, int64, uint32[::1], uint64[::1], uint64[::1],"
    " int64[::1], int64[::1], int32[::1], int32[::1])"
)
@no_type_check
def distinct_ids(ids, digit_bits, num_digits, counts, keys, spare, unique, inverse, order, starts):
    """Sort ids, number the distinct ones, and list the places of each in order.

    Ids are below 2^(digit_bits · num_digits) and below 2³². `counts` has 2^digit_bits elements;
    `keys` and `spare` are as long as `ids`, and hold an id in the upper and its place in the lower
    half of a word. Returns the number of distinct ids.
    """
    n = len(ids)
    half = uint64(32)
    size = 1 << digit_bits
    mask = uint64(size - 1)
    for i in range(n):
        keys[i] = (uint64(ids[i]) << half) | uint64(i)
    source = keys
    target = spare
    for digit in range(num_digits):
        shift = half + uint64(digit * digit_bits)
        for bucket in range(size):
            counts[bucket] = 0
        for i in range(n):
            counts[(source[i] >> shift) & mask] += uint32(1)
        total = uint32(0)
        for bucket in range(size):
            count = counts[bucket]
            counts[bucket] = total
            total += count
        for i in range(n):
            word = source[i]
            bucket = (word >> shift) & mask
            place = counts[bucket]
            target[uint64(place)] = word
            counts[bucket] = place + uint32(1)
        source, target = target, source
    found = -1
    last = uint64(0xFFFFFFFFFFFFFFFF)
    for i in range(n):
        word = source[i]
        value = word >> half
        place = word & uint64(0xFFFFFFFF)
        if value != last:
            last = value
            found += 1
            unique[found] = int64(value)
            starts[found] = i
        inverse[place] = found
        order[i] = int32(place)
    starts[found + 1] = n
    return found + 1


@kernel("boolean(int64[:, ::1], int64[::1], int64[::1], int64[::1])")
@no_type_check
def add_offsets(ids, bounds, offsets, out):
    """Write ids + offsets of their column; returns whether all ids were in 0 … bound − 1."""
    n, columns = ids.shape
    is_valid = True
    for i in range(n):
        for j in range(columns):
            value = ids[i, j]
            is_valid &= uint64(value) < uint64(bounds[j])  # a negative id is a very large one
            out[i * columns + j] = value + offsets[j]
    return is_valid
