"""Ids of a batch distributed over buckets by a hash, and grouped within each.

An id is multiplied by an odd number modulo 2^bits, which can be undone. The upper bits of the
product are its bucket, so hot ids, which often have small numbers, are spread over all buckets. A
bucket fits a first-level cache, where its ids are sorted by the other bits, without a branch that
depends on them. A word is a product in its upper and a place in the batch in its lower half.
"""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import int32, int64, uint32, uint64

from outsize.kernels.compiled import kernel

_HALF = uint64(32)
_LOWER = uint64(0xFFFFFFFF)


@kernel("void(int64, int64, int64[::1], int64, uint64, int64, int64, uint32[:, ::1])")
@no_type_check
def count_buckets(part, parts, ids, start, factor, bits, bucket_bits, counts):
    """Count the ids of a part of the batch by bucket; ids begin at `start`."""
    n = len(ids)
    mask, shift = uint64((1 << bits) - 1), uint64(bits - bucket_bits)
    own = counts[part]
    for bucket in range(1 << bucket_bits):
        own[bucket] = 0
    for i in range(n * part // parts, n * (part + 1) // parts):
        own[(uint64(ids[i] - start) * factor & mask) >> shift] += uint32(1)


@kernel(
    "void(int64, int64, int64[::1], int64, uint64, int64, int64, uint32[:, ::1], uint32[:, ::1],"
    " int32[::1], uint64[::1])"
)
@no_type_check
def fill_buckets(part, parts, ids, start, factor, bits, bucket_bits, counts, firsts, edges, words):
    """Write the words of a part of the batch to their buckets, in the order of the batch.

    `firsts` has the shape of `counts`. Part 0 writes `edges`: where buckets start and the last one
    ends, and the size of the largest.
    """
    n = len(ids)
    mask, shift = uint64((1 << bits) - 1), uint64(bits - bucket_bits)
    own = firsts[part]
    num_buckets = 1 << bucket_bits
    total, most = uint32(0), uint32(0)
    for bucket in range(num_buckets):
        before = total
        for other in range(parts):
            if other == part:
                own[bucket] = total
            total += counts[other, bucket]
        most = max(most, total - before)
        if part == 0:
            edges[bucket + 1] = int32(total)
    if part == 0:
        edges[0] = 0
        edges[num_buckets + 1] = int32(most)
    for i in range(n * part // parts, n * (part + 1) // parts):
        product = uint64(ids[i] - start) * factor & mask
        bucket = product >> shift
        place = own[bucket]
        words[uint64(place)] = (product << _HALF) | uint64(i)
        own[bucket] = place + uint32(1)


@numba.njit(forceinline=True)
@no_type_check
def sort_words(words, spare, counts, bits):
    """Sort words by the lower `bits` of their products, stably; returns where they are.

    `counts` has two lines of 2^⌈bits / 2⌉ numbers.
    """
    n = len(words)
    digit_bits = (bits + 1) // 2
    size = 1 << digit_bits
    mask = uint64(size - 1)
    low, high = counts[0], counts[1]
    shift = _HALF + uint64(digit_bits)
    for digit in range(size):
        low[digit] = 0
        high[digit] = 0
    for i in range(n):
        word = words[i]
        low[(word >> _HALF) & mask] += uint32(1)
        high[(word >> shift) & mask] += uint32(1)
    before_low, before_high = uint32(0), uint32(0)
    for digit in range(size):
        num_low, num_high = low[digit], high[digit]
        low[digit], high[digit] = before_low, before_high
        before_low += num_low
        before_high += num_high
    for i in range(n):
        word = words[i]
        digit = (word >> _HALF) & mask
        place = low[digit]
        spare[uint64(place)] = word
        low[digit] = place + uint32(1)
    for i in range(n):
        word = spare[i]
        digit = (word >> shift) & mask
        place = high[digit]
        words[uint64(place)] = word
        high[digit] = place + uint32(1)


@numba.njit(forceinline=True)
@no_type_check
def group_words(words, inverse, bits, rows, ends, order):
    """List the distinct ids of sorted words, the end of each in them, and all places; the number.

    `inverse` undoes the factor.
    """
    mask = uint64((1 << bits) - 1)
    found = -1
    last = uint64(0xFFFFFFFFFFFFFFFF)
    for i in range(len(words)):
        word = words[i]
        product = word >> _HALF
        found += int64(product != last)
        last = product
        rows[found] = int64(product * inverse & mask)
        ends[found] = int32(i + 1)
        order[i] = int32(word & _LOWER)
    return found + 1
