"""Vectors that are concatenated from pieces of an array, or sums of pieces.

A *source* gives every column of a vector one piece: a pointer that is stored, or a hash of the id.
The pieces of all sources of a column are added.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numpy import float32, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.compositional.blocks_numba import add_block, write_block
from outsize.kernels.compositional.starts_numba import find_starts
from outsize.kernels.lines_numba import add_line, copy_line
from outsize.kernels.vectors_numba import address_of, unowned

_SLICE = 1 << 10  # numbers that are summed over all chunks, while they are in the first cache


@kernel("void(int64, int64, float32[::1], int32[:, :, ::1], int64[::1], float32[:, ::1])")
@no_type_check
def compose(part, parts, array, starts, edges, out):
    """Column j of a vector is the piece at its start j, plus that of the second source, if any.

    Pieces wrap around at the end of the array, if there is one source. A start that is a complement
    stands for minus one times its piece.
    """
    starts, edges = unowned(starts), unowned(edges)
    num_blocks, _, block = starts.shape
    numbers, vectors = address_of(array), address_of(out)
    for b in range(num_blocks * part // parts, num_blocks * (part + 1) // parts):
        num = min(block, len(out) - b * block)
        begin = vectors + 4 * b * block * edges[-1]
        write_block(numbers, len(array), starts[b], num, edges, begin)


@kernel(
    "void(int64, int64, float32[::1], int64[::1], int64[::1], uint8[::1], uint8[::1],"
    " int64[:, ::1], int64[:, ::1], int64[:, ::1], boolean, int32[:, :, ::1], int64[::1],"
    " float32[:, ::1])"
)
@no_type_check
def find_and_compose(
    part,
    parts,
    array,
    ids,
    lines,
    packed,
    packed_2,
    words,
    words_2,
    layouts,
    signed,
    starts,
    edges,
    out,
):
    """Find where the pieces of ids begin, and put them together.

    Args:
        part: Which part of the blocks to do.
        parts: Number of parts.
        array: The array of all pieces.
        ids: The ids.
        lines: For each id, the line of its stored pointers.
        packed: Stored pointers of the first source; 8 bytes or more.
        packed_2: Stored pointers of the second.
        words: Hash functions of all columns of the first source.
        words_2: Those of the second.
        layouts: Per source: bits per stored pointer (0 if hashed), pointers per line, the first
            to use, what to add to ids before they are hashed, hash buckets, stride, and the start
            of each column.
        signed: Whether hashes give signs as well.
        starts: Per block, source and column: where the piece of each id begins (output).
        edges: Edges of the columns of a vector.
        out: The vectors (output).
    """
    ids, lines, starts = unowned(ids), unowned(lines), unowned(starts)
    packed, packed_2 = unowned(packed), unowned(packed_2)
    words, words_2 = unowned(words), unowned(words_2)
    layouts, edges = unowned(layouts), unowned(edges)
    num_blocks, _, block = starts.shape
    columns, dim = len(edges) - 1, edges[-1]
    numbers, vectors = address_of(array), address_of(out)
    scratch = np.empty(block, uint64)
    for b in range(num_blocks * part // parts, num_blocks * (part + 1) // parts):
        begin, stop = b * block, min((b + 1) * block, len(ids))
        found = starts[b]
        find_starts(
            ids, lines, begin, stop, packed, words, layouts[0], signed, scratch, found[:columns]
        )
        if len(layouts) > 1:
            layout, rest = layouts[1], found[columns:]
            find_starts(ids, lines, begin, stop, packed_2, words_2, layout, False, scratch, rest)
        block_begin = vectors + 4 * begin * dim
        write_block(numbers, len(array), found, stop - begin, edges, block_begin)


@kernel("void(int64, int64, float32[:, ::1], int32[:, :, ::1], int64[::1], int64, float32[:, ::1])")
@no_type_check
def add_pieces(part, parts, gradients, starts, edges, groups, totals):
    """Add gradients to the pieces that made a vector.

    The blocks are cut into as many chunks as `totals` has lines, each with a sum of its own, so
    that the result does not depend on the number of threads. The pieces are cut into `groups`,
    whose places in the array do not overlap. A single sum is zero before; several are set to zero.
    """
    starts, edges, totals = unowned(starts), unowned(edges), unowned(totals)
    num_blocks, pieces, block = starts.shape
    num_chunks, size = totals.shape
    per_group = pieces // groups
    for task in range(part, num_chunks * groups, parts):
        chunk, group = task // groups, task % groups
        total = totals[chunk]
        if num_chunks > 1:
            total[:] = float32(0.0)
        for b in range(num_blocks * chunk // num_chunks, num_blocks * (chunk + 1) // num_chunks):
            num = min(block, len(gradients) - b * block)
            own = starts[b, group * per_group : (group + 1) * per_group]
            begin = address_of(gradients) + 4 * b * block * edges[-1]
            add_block(begin, own, num, edges, address_of(total), size)


@kernel("void(int64, int64, float32[:, ::1], float32[::1])")
@no_type_check
def sum_chunks(part, parts, totals, out):
    """Add the sums of all chunks, in order."""
    num_chunks, size = totals.shape
    sums, target = address_of(totals), address_of(out)
    stop = size * (part + 1) // parts
    for k in range(size * part // parts, stop, _SLICE):
        num = min(_SLICE, stop - k)
        copy_line(sums + 4 * k, target + 4 * k, num)
        for chunk in range(1, num_chunks):
            add_line(sums + 4 * (chunk * size + k), target + 4 * k, num)
