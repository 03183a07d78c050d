"""Where the pieces of a block of ids begin, by stored pointers or by hashes of the ids.

The starts of a column are neighbours, so that they are computed by vector instructions.

Stored pointers have any number of bits. The pointers of several columns are read as one word of 64
bits, and cut out of it afterwards.
"""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import int32, int64, uint64

from outsize.kernels.memory_numba import prefetch
from outsize.kernels.vectors_numba import address_of, load_word

_LARGE = 1 << 24  # bytes; from smaller arrays the processor reads fast enough by itself
_FIRST = 6  # in a layout, the start of column 0


@numba.njit(forceinline=True)
@no_type_check
def mix(word):
    """`outsize.hashing.mix_bits`."""
    word = (word ^ (word >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> uint64(27))) * uint64(0x94D049BB133111EB)
    return word ^ (word >> uint64(31))


@numba.njit(forceinline=True)
@no_type_check
def hash_mixed(mixed, a, b, c):
    """32 bits of a multiply-shift hash of an id that is mixed already."""
    return (a * (mixed & uint64(0xFFFFFFFF)) + b * (mixed >> uint64(32)) + c) >> uint64(32)


@numba.njit
@no_type_check
def _find_hashed(ids, words, layout, signed, mixed, starts):
    """Write h_j(id) · stride + start of column j; its complement if the sign is −1.

    Buckets number at most 2²⁴.
    """
    offset, buckets, stride = uint64(layout[3]), uint64(layout[4]), uint64(layout[5])
    num = len(ids)
    for i in range(num):
        mixed[i] = mix(uint64(ids[i]) + offset)
    for j in range(len(layout) - _FIRST):
        a, b, c = uint64(words[j, 0]), uint64(words[j, 1]), uint64(words[j, 2])
        origin = uint64(layout[_FIRST + j])
        line = starts[j]
        for i in range(num):
            pointer = (hash_mixed(mixed[i], a, b, c) * buckets) >> uint64(32)
            line[i] = int32(pointer * stride + origin)
        if signed:
            a, b, c = uint64(words[j, 6]), uint64(words[j, 7]), uint64(words[j, 8])
            for i in range(num):
                line[i] ^= -int32(hash_mixed(mixed[i], a, b, c) >> uint64(31))


@numba.njit
@no_type_check
def _find_stored(lines, packed, layout, read, starts):
    """Write pointer · stride + start of column j, for the pointers stored at some lines."""
    bits, width, first, stride = layout[0], layout[1], layout[2], layout[5]
    columns, num, last = len(layout) - _FIRST, len(lines), len(packed) - 8
    mask = ~uint64(0) >> uint64(64 - bits)
    # A pointer that begins within a byte has up to 7 bits of others before it.
    per_word = (64 if bits % 8 == 0 else 57) // bits
    for j in range(0, columns, per_word):
        line_bits, first_bit = width * bits, (first + j) * bits
        for i in range(num):
            bit = lines[i] * line_bits + first_bit
            byte = min(bit >> 3, last)
            read[i] = load_word(address_of(packed) + byte) >> uint64(bit - (byte << 3))
        for k in range(j, min(j + per_word, columns)):
            shift, origin = uint64((k - j) * bits), layout[_FIRST + k]
            line = starts[k]
            for i in range(num):
                line[i] = int32(int64((read[i] >> shift) & mask) * stride + origin)


@numba.njit
@no_type_check
def _fetch_stored(lines, packed, layout):
    """Prefetch the pointers stored at some lines."""
    bits, width, first = layout[0], layout[1], layout[2]
    for i in range(len(lines)):
        prefetch(packed, ((lines[i] * width + first) * bits) >> 3)


@numba.njit(forceinline=True)
@no_type_check
def find_starts(ids, lines, begin, stop, packed, words, layout, signed, scratch, starts):
    """Find the pieces of one source for a block of ids, by hashes or by stored pointers.

    Args:
        ids: All ids.
        lines: For each id, the line of its stored pointers.
        begin: The first id of the block.
        stop: The end of the block.
        packed: Stored pointers; 8 bytes or more.
        words: Hash functions of the columns.
        layout: As in `find_and_compose`.
        signed: Whether hashes give signs as well.
        scratch: One word per id of a block.
        starts: Per column, where the piece of each id begins (output).
    """
    if layout[0] == 0:
        _find_hashed(ids[begin:stop], words, layout, signed, scratch, starts)
    else:
        if len(packed) >= _LARGE:  # those of the next block, while this one is worked on
            _fetch_stored(lines[stop : 2 * stop - begin], packed, layout)
        _find_stored(lines[begin:stop], packed, layout, scratch, starts)
