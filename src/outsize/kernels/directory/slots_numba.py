"""A hash table from ids to slots, with open addressing and linear probing.

An entry is one word: the lower half of an id, then its slot + 1; 0 is an empty entry. If ids are
`wide`, two may share their lower half, so a match is checked in `held`, the id in each slot.
"""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import int64, uint32, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.memory_numba import prefetch

_AHEAD = 24  # look-ups whose entries are prefetched
_TABLE = "uint64[::1], int64[::1], boolean"


@numba.njit(forceinline=True)
@no_type_check
def _home(key, size):
    """The first place for an id: 32 bits of a mix of all its bits, scaled to the table."""
    word = uint64(key)
    word = (word ^ (word >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> uint64(27))) * uint64(0x94D049BB133111EB)
    return ((word >> uint64(32)) * uint64(size)) >> uint64(32)


@numba.njit(forceinline=True)
@no_type_check
def _place(entries, held, wide, key, place):
    """Where an id is, from its home on; the empty place after its run if it is absent."""
    size = uint64(len(entries))
    tag = uint64(uint32(uint64(key)))
    while True:
        entry = entries[place]
        if entry == uint64(0):
            return place
        if entry >> uint64(32) == tag and (
            not wide or held[(entry & uint64(0xFFFFFFFF)) - uint64(1)] == key
        ):
            return place
        place += uint64(1)
        if place == size:
            place = uint64(0)


@numba.njit(forceinline=True)
@no_type_check
def _put(entries, key, slot):
    size = uint64(len(entries))
    place = _home(key, size)
    while entries[place] != uint64(0):
        place += uint64(1)
        if place == size:
            place = uint64(0)
    entries[place] = (uint64(uint32(uint64(key))) << uint64(32)) | uint64(slot + 1)


@numba.njit(forceinline=True)
@no_type_check
def _find(entries, held, wide, ids, n, found):
    size = uint64(len(entries))
    for i in range(min(_AHEAD, n)):
        home = int64(_home(ids[i], size))
        prefetch(entries, home)
        found[i] = home
    for i in range(n):
        if i + _AHEAD < n:
            home = int64(_home(ids[i + _AHEAD], size))
            prefetch(entries, home)
            found[i + _AHEAD] = home
        place = _place(entries, held, wide, ids[i], uint64(found[i]))
        found[i] = int64(entries[place] & uint64(0xFFFFFFFF)) - 1


@kernel(f"void({_TABLE}, int64[::1], int64[::1])")
@no_type_check
def find(entries, held, wide, ids, found):
    """The slot of each id, or −1."""
    _find(entries, held, wide, ids, len(ids), found)


@kernel(
    f"int64({_TABLE}, int64[::1], int64, int64, int64, int64[::1], int64[::1], int64[::1],"
    " int64[::1])"
)
@no_type_check
def find_others(entries, held, wide, ids, own, number, skipped, slots, others, places, found):
    """The slot of each id, or −1; `skipped` for those that are `own` modulo a number.

    Writes the other ids, their places and their slots; returns how many they are.
    """
    mask = number - 1
    is_power = number & mask == 0
    num = 0
    for i in range(len(ids)):
        rest = ids[i] & mask if is_power else int64(uint64(ids[i]) % uint64(number))
        slots[i] = skipped
        others[num] = ids[i]
        places[num] = i
        num += int64(rest != own)
    _find(entries, held, wide, others, num, found)
    for i in range(num):
        slots[uint64(places[i])] = found[i]
    return num


@kernel("void(uint64[::1], int64[::1], int64[::1])")
@no_type_check
def put(entries, ids, slots):
    """Add ids that are absent."""
    for i in range(len(ids)):
        _put(entries, ids[i], slots[i])


@kernel("void(uint64[::1], int64[::1])")
@no_type_check
def put_all(entries, held):
    """Add the ids of all slots to an empty table."""
    for slot in range(len(held)):
        if held[slot] >= 0:
            _put(entries, held[slot], slot)


@kernel(f"void({_TABLE}, int64[::1])")
@no_type_check
def remove(entries, held, wide, ids):
    """Remove ids that are present; `held` must still have all ids of the table.

    Each entry behind the gap whose home is not between the two moves into it, up to the end of the
    run: no look-up can tell that anything was there.
    """
    size = uint64(len(entries))
    for i in range(len(ids)):
        gap = _place(entries, held, wide, ids[i], _home(ids[i], size))
        place = gap
        while True:
            place += uint64(1)
            if place == size:
                place = uint64(0)
            entry = entries[place]
            if entry == uint64(0):
                break
            if wide:
                key = held[(entry & uint64(0xFFFFFFFF)) - uint64(1)]
            else:
                key = int64(entry >> uint64(32))
            home = _home(key, size)
            # Distances behind its home, around the end of the table.
            from_home = place - home if place >= home else place + size - home
            from_gap = place - gap if place >= gap else place + size - gap
            if from_home >= from_gap:
                entries[gap] = entry
                gap = place
        entries[gap] = uint64(0)
