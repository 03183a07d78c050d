"""The slots of a cache in the order of a key: a heap with four children per node.

A line of the heap is (key, slot); ties of keys go to the lowest slot. Keys grow while a row stays
in its slot, and the heap is not told: what it stores is a lower bound, and is corrected when it is
at the top. `stored` is the key of the valid line of each slot, −1 for none; other lines are old.

The key of a slot is (high, low), two numbers of 31 bits.
"""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import int64, uint8

from outsize.kernels.compiled import kernel

_HEAP = "int64[:, ::1], int64[::1], int32[::1], int32[::1]"


@numba.njit(forceinline=True)
@no_type_check
def _key(high, low, slot):
    return (int64(high[slot]) << 32) | int64(low[slot])


@numba.njit(forceinline=True)
@no_type_check
def _sift_down(heap, size, place):
    key = heap[place, 0]
    slot = heap[place, 1]
    while True:
        first = 4 * place + 1
        if first >= size:
            break
        least = first
        for child in range(first + 1, min(first + 4, size)):
            if heap[child, 0] < heap[least, 0] or (
                heap[child, 0] == heap[least, 0] and heap[child, 1] < heap[least, 1]
            ):
                least = child
        if heap[least, 0] > key or (heap[least, 0] == key and heap[least, 1] > slot):
            break
        heap[place, 0] = heap[least, 0]
        heap[place, 1] = heap[least, 1]
        place = least
    heap[place, 0] = key
    heap[place, 1] = slot


@numba.njit(forceinline=True)
@no_type_check
def _push(heap, size, key, slot):
    place = size
    while place > 0:
        parent = (place - 1) // 4
        if heap[parent, 0] < key or (heap[parent, 0] == key and heap[parent, 1] < slot):
            break
        heap[place, 0] = heap[parent, 0]
        heap[place, 1] = heap[parent, 1]
        place = parent
    heap[place, 0] = key
    heap[place, 1] = slot


@numba.njit(forceinline=True)
@no_type_check
def _pop(heap, size):
    """Remove the top line; returns the new size."""
    size -= 1
    heap[0, 0] = heap[size, 0]
    heap[0, 1] = heap[size, 1]
    if size > 1:
        _sift_down(heap, size, 0)
    return size


@kernel(f"int64({_HEAP}, int64[::1], int64)")
@no_type_check
def build(heap, stored, high, low, held, limit):
    """Order all slots that hold an id and whose high number is below a limit; returns the size."""
    size = 0
    for slot in range(len(held)):
        stored[slot] = -1
        if held[slot] >= 0 and high[slot] < limit:
            key = _key(high, low, slot)
            stored[slot] = key
            heap[size, 0] = key
            heap[size, 1] = slot
            size += 1
    for place in range((size - 2) // 4, -1, -1):
        _sift_down(heap, size, place)
    return size


@kernel(f"int64({_HEAP}, int64, int64[::1])")
@no_type_check
def add(heap, stored, high, low, size, slots):
    """Add slots that got a new row; returns the new size."""
    for i in range(len(slots)):
        slot = slots[i]
        key = _key(high, low, slot)
        stored[slot] = key
        _push(heap, size, key, slot)
        size += 1
    return size


@kernel(
    f"int64({_HEAP}, int64, int64[::1], int64, int64[::1], uint8[::1], float32[::1], float32[::1],"
    " int64[::1], int64[::1])"
)
@no_type_check
def take_lowest(
    heap, stored, high, low, size, held, limit, read, is_read, offers, worth, victims, count
):
    """Take the slots with the lowest keys, in order, as many as there are `victims`.

    Slots in `read` stay, as do those from the limit on. With `offers`, the i-th slot is taken only
    if offer i is more than its worth, and so are no later ones. `is_read` is zero before and after.
    Writes the number of slots that were taken to `count`, and returns the new size.
    """
    for i in range(len(read)):
        is_read[read[i]] = uint8(1)
    num = 0
    most = len(victims)
    num_aside = 0
    priced = len(offers) > 0
    while num < most and size > 0:
        key = heap[0, 0]
        slot = heap[0, 1]
        if stored[slot] != key:
            size = _pop(heap, size)
            continue
        if held[slot] < 0 or high[slot] >= limit:
            stored[slot] = -1
            size = _pop(heap, size)
            continue
        now = _key(high, low, slot)
        if now != key:
            stored[slot] = now
            heap[0, 0] = now
            _sift_down(heap, size, 0)
            continue
        if is_read[slot] == 1:
            is_read[slot] = uint8(2)  # popped, to be pushed again
            num_aside += 1
            size = _pop(heap, size)
            continue
        if priced and not offers[num] > worth[slot]:
            break
        stored[slot] = -1
        size = _pop(heap, size)
        victims[num] = slot
        num += 1
    for i in range(len(read)):
        slot = read[i]
        if num_aside > 0 and is_read[slot] == 2:
            _push(heap, size, stored[slot], slot)
            size += 1
        is_read[slot] = uint8(0)
    count[0] = num
    return size
