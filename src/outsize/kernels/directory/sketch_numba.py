"""A count-min sketch with four hash functions: estimates and conservative updates of a batch.

The hash functions are those of `outsize.hashing`, for up to 2²⁴ buckets. A batch is read before it
is written, and written as maxima: results do not depend on the order of ids.
"""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import int64, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.memory_numba import prefetch

_SKETCH = "float32[::1], int64[:, ::1], int64"


@numba.njit(forceinline=True)
@no_type_check
def _buckets(key, hashes, num_buckets, buckets, line, amounts):
    """Write the bucket of an id for each hash function, and prefetch its amount."""
    word = uint64(key)
    word = (word ^ (word >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> uint64(27))) * uint64(0x94D049BB133111EB)
    word = word ^ (word >> uint64(31))
    lower = word & uint64(0xFFFFFFFF)
    upper = word >> uint64(32)
    for k in range(4):
        value = uint64(hashes[k, 0]) * lower + uint64(hashes[k, 1]) * upper + uint64(hashes[k, 2])
        bucket = ((value >> uint64(32)) * uint64(num_buckets)) >> uint64(32)
        bucket += uint64(k * num_buckets)
        prefetch(amounts, int64(bucket))
        buckets[line, k] = int64(bucket)


@numba.njit(forceinline=True)
@no_type_check
def _least(amounts, buckets, line):
    least = amounts[uint64(buckets[line, 0])]
    for k in range(1, 4):
        least = min(least, amounts[uint64(buckets[line, k])])
    return least


@kernel(f"void({_SKETCH}, int64[::1], int64[:, ::1], float32[::1])")
@no_type_check
def estimate(amounts, hashes, num_buckets, ids, buckets, out):
    """The amount of each id: the least of its buckets."""
    for i in range(len(ids)):
        _buckets(ids[i], hashes, num_buckets, buckets, i, amounts)
    for i in range(len(ids)):
        out[i] = _least(amounts, buckets, i)


@numba.njit(forceinline=True)
@no_type_check
def _lift(amounts, buckets, line, amount):
    for k in range(4):
        bucket = uint64(buckets[line, k])
        amounts[bucket] = max(amounts[bucket], amount)


@kernel(f"void({_SKETCH}, int64[::1], int64[:, ::1], float32[::1])")
@no_type_check
def lift(amounts, hashes, num_buckets, ids, buckets, lifted):
    """Raise each id to at least an amount."""
    for i in range(len(ids)):
        _buckets(ids[i], hashes, num_buckets, buckets, i, amounts)
    for i in range(len(ids)):
        _lift(amounts, buckets, i, lifted[i])


@kernel(
    f"void({_SKETCH}, int64[::1], int64[::1], float32[::1], float32, int64[:, ::1], float32[::1])"
)
@no_type_check
def count_uses(amounts, hashes, num_buckets, ids, slots, worth, amount, buckets, lifted):
    """Add an amount to the worth of the slots of a batch, and to ids without a slot here."""
    num = 0
    for i in range(len(ids)):
        if slots[i] >= 0:
            worth[uint64(slots[i])] += amount
        else:
            _buckets(ids[i], hashes, num_buckets, buckets, num, amounts)
            num += 1
    for i in range(num):
        lifted[i] = _least(amounts, buckets, i) + amount
    for i in range(num):
        _lift(amounts, buckets, i, lifted[i])
