"""Where pieces begin, computed in Triton: by stored or packed pointers, or by hashes of ids.

The pieces of a batch are numbered: piece e is that of column `e % COLUMNS` of id `e // COLUMNS`.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

HASHED, STORED, PACKED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
@no_type_check
def mix(word):
    """`outsize.hashing.mix_bits` of uint64."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB
    return word ^ (word >> 31)


@triton.jit
@no_type_check
def hash_mixed(mixed, words, column, FIRST: tl.constexpr):
    """32 bits of a multiply-shift hash of ids that are mixed already, as uint64.

    Args:
        mixed: The mixed ids.
        words: Nine words per hash function.
        column: The function for each id.
        FIRST: The first of the three words to use.
    """
    at = words + column * 9 + FIRST
    low, high = tl.load(at).to(tl.uint64), tl.load(at + 1).to(tl.uint64)
    last = tl.load(at + 2).to(tl.uint64)
    return (low * (mixed & 0xFFFFFFFF) + high * (mixed >> 32) + last) >> 32


@triton.jit
@no_type_check
def bucket_of(hashed, buckets):
    """`hashed · buckets / 2³²` of hashes of 32 bits.

    A product of 64 bits, shifted, would be the same; but ptxas of CUDA 12.8 takes that for a number
    that it may multiply by a stride before the shift, and pieces are then sought in wrong places.
    """
    return tl.umulhi(hashed.to(tl.uint32), buckets.to(tl.uint32)).to(tl.int64)


@triton.jit
@no_type_check
def _pointers_of(
    ids,
    lines,
    column,
    is_piece,
    data,
    per_line,
    first,
    offset,
    buckets,
    KIND: tl.constexpr,
    BITS: tl.constexpr,
):
    if KIND == HASHED:
        mixed = mix((ids + offset).to(tl.uint64))
        return bucket_of(hash_mixed(mixed, data, column, 0), buckets)
    if KIND == STORED:
        found = tl.load(data + lines * per_line + first + column, mask=is_piece, other=0)
        found = found.to(tl.int64)
        if BITS < 64:
            found = found & ((1 << BITS) - 1)
        return found
    bit = (lines * per_line + column) * BITS
    word = tl.zeros_like(bit)
    for k in tl.static_range((BITS + 14) // 8):
        byte = tl.load(data + (bit >> 3) + k, mask=is_piece, other=0)
        word = word | (byte.to(tl.int64) << (8 * k))
    return (word >> (bit & 7)) & ((1 << BITS) - 1)


@triton.jit
@no_type_check
def find_starts(
    ids,
    lines,
    column,
    is_piece,
    data,
    per_line,
    first,
    offset,
    buckets,
    origin,
    KIND: tl.constexpr,
    BITS: tl.constexpr,
    STRIDE: tl.constexpr,
    STEPPED: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIM: tl.constexpr,
):
    """Where some pieces begin in the array; anywhere where there is no piece.

    Args:
        ids: The id of each piece.
        lines: The line of its stored pointers.
        column: Its column.
        is_piece: Whether there is a piece.
        data: Stored pointers, or hash functions.
        per_line: Pointers per line.
        first: The first of them to use.
        offset: What to add to ids before they are hashed.
        buckets: Hash buckets.
        origin: Where the piece of column 0 begins that pointer 0 names.
        KIND: Of the pointers.
        BITS: Bits per pointer that is not hashed.
        STRIDE: Numbers between the pieces of neighbouring pointers.
        STEPPED: Whether columns begin where they do in a vector, not all at the same place.
        COLUMNS: Columns of a vector.
        DIM: Numbers of a vector.
    """
    pointers = _pointers_of(
        ids, lines, column, is_piece, data, per_line, first, offset, buckets, KIND, BITS
    )
    starts = pointers.to(tl.int32) * STRIDE + origin
    if STEPPED:
        starts += edge_of(column, COLUMNS, DIM)
    return starts


@triton.jit
@no_type_check
def edge_of(column, COLUMNS: tl.constexpr, DIM: tl.constexpr):
    """Where columns begin in a vector."""
    if DIM % COLUMNS == 0:
        return column * (DIM // COLUMNS)
    return column * (DIM // COLUMNS) + tl.minimum(column, DIM % COLUMNS)


@triton.jit
@no_type_check
def width_of(column, COLUMNS: tl.constexpr, DIM: tl.constexpr):
    """The widths of columns."""
    return DIM // COLUMNS + (column < DIM % COLUMNS).to(tl.int32)


@triton.jit
@no_type_check
def numbers_of(column, is_piece, COLUMNS: tl.constexpr, DIM: tl.constexpr, LANES: tl.constexpr):
    """Which lanes hold a number of a piece."""
    if LANES * COLUMNS == DIM:  # a mask that is the same in all lanes leaves vectors whole
        is_number = tl.broadcast_to(is_piece[:, None], is_piece.shape[0], LANES)
    else:
        width = width_of(column, COLUMNS, DIM)
        is_number = is_piece[:, None] & (tl.arange(0, LANES)[None, :] < width[:, None])
    return is_number


@triton.jit
@no_type_check
def sign_of(ids, column, words):
    """The sign that the hash function of a column gives."""
    top = hash_mixed(mix(ids.to(tl.uint64)), words, column, 6) >> 31
    return 1.0 - 2.0 * top.to(tl.float32)
