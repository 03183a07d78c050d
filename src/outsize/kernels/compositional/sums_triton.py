"""Sums of gradients by piece in an order that does not change, as a Triton kernel.

Every program sums its share of the pieces in an array of its own, a block at a time. Pieces of a
block that begin at the same place are added by a product with the matrix of which equal which,
whose second factor is split into parts of bfloat16 that add up to it. The first of them adds the
sum to the array. It does so by an atomic operation, which need not wait for the number there; as no
two pieces of a block add to the same place, and blocks are separated by barriers, the order is
always the same. At last the arrays of all programs are added in order.

Where pieces may overlap (`CIRCULAR`), each is cut at the multiples of `LANES`, and its two parts
are added one after the other. Such an array continues past its end, where the last pieces are; the
numbers there belong to its beginning.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from outsize.kernels.compositional.blocks_triton import (
    UNSPECIALIZED,
    gradients_of,
    ids_of,
    places_of,
    starts_of,
)
from outsize.kernels.compositional.starts_triton import numbers_of, sign_of, width_of


@triton.jit
@no_type_check
def _sums_of_equals(starts, values, is_piece, SPLITS: tl.constexpr):
    """The sum of all values with the same start, and which piece is the first that has it."""
    equal = starts[:, None] == starts[None, :]
    factors = tl.where(equal, 1.0, 0.0).to(tl.bfloat16)
    part = values.to(tl.bfloat16)
    sums = tl.dot(factors, part)
    for _ in tl.static_range(SPLITS - 1):
        values = values - part.to(tl.float32)
        part = values.to(tl.bfloat16)
        sums = tl.dot(factors, part, sums)
    row = tl.arange(0, equal.shape[0])
    before = tl.where(equal & (row[None, :] < row[:, None]), 1, 0)
    return sums, is_piece & (tl.max(before, axis=1) == 0)


@triton.jit
@no_type_check
def _add_to(totals, places, values, is_number):
    """Add to different places of this program's array."""
    tl.atomic_add(totals + places, values, mask=is_number, sem="relaxed", scope="cta")


@triton.jit
@no_type_check
def _add_circular(
    gradients,
    totals,
    ids,
    start,
    block,
    words,
    num_pieces,
    SIGNED: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIM: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Add the gradients of pieces that may overlap, each in two parts."""
    piece = block * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    is_piece, column = piece < num_pieces, (piece % COLUMNS).to(tl.int32)
    lane = tl.arange(0, LANES)[None, :]
    width = width_of(column, COLUMNS, DIM)[:, None]
    places = places_of(block, COLUMNS, DIM, LANES, BLOCK)
    for half in tl.static_range(2):
        own = lane - (start % LANES)[:, None] + half * LANES  # the number that a lane takes
        is_own = is_piece[:, None] & (own >= 0) & (own < width)
        values = tl.load(gradients + (places + (own - lane)), mask=is_own, other=0.0)
        values = values.to(tl.float32)
        if SIGNED:
            values = values * sign_of(ids, column, words)[:, None]
        cut = (start // LANES + half) * LANES
        sums, is_written = _sums_of_equals(cut, values, is_piece, SPLITS)
        is_written = tl.broadcast_to(is_written[:, None], BLOCK, LANES)
        _add_to(totals, cut[:, None] + lane, sums, is_written)
        tl.debug_barrier()


@triton.jit(do_not_specialize=UNSPECIALIZED)
@no_type_check
def sum_pieces_kernel(
    gradients,
    totals,
    ids,
    lines,
    data_1,
    per_line_1,
    first_1,
    offset_1,
    buckets_1,
    origin_1,
    data_2,
    per_line_2,
    first_2,
    offset_2,
    buckets_2,
    origin_2,
    num_pieces,
    num_totals,
    size,
    KIND_1: tl.constexpr,
    BITS_1: tl.constexpr,
    KIND_2: tl.constexpr,
    BITS_2: tl.constexpr,
    SOURCES: tl.constexpr,
    STRIDE: tl.constexpr,
    STEPPED: tl.constexpr,
    SIGNED: tl.constexpr,
    CIRCULAR: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIM: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    ZEROS: tl.constexpr,
):
    """Sum the gradients of this program's share of the pieces in its line of `totals`."""
    program = tl.program_id(0).to(tl.int64)
    totals += program * num_totals
    for zeros in range(0, num_totals, ZEROS):
        zero = zeros + tl.arange(0, ZEROS)
        tl.store(totals + zero, tl.zeros((ZEROS,), tl.float32), mask=zero < num_totals)
    tl.debug_barrier()
    lane = tl.arange(0, LANES)[None, :]
    blocks = tl.cdiv(num_pieces, BLOCK)
    begin = (blocks * program // tl.num_programs(0)).to(tl.int32)
    stop = (blocks * (program + 1) // tl.num_programs(0)).to(tl.int32)
    # What a block needs is read while the one before it is summed, and its ids one block earlier.
    key, line = ids_of(ids, lines, begin, num_pieces, COLUMNS, BLOCK)
    next_key, next_line = ids_of(ids, lines, begin + 1, num_pieces, COLUMNS, BLOCK)
    start, other = starts_of(
        key, line, begin, data_1, per_line_1, first_1, offset_1, buckets_1, origin_1, data_2,
        per_line_2, first_2, offset_2, buckets_2, origin_2, num_pieces, KIND_1, BITS_1, KIND_2,
        BITS_2, SOURCES, STRIDE, STEPPED, COLUMNS, DIM, BLOCK,
    )  # fmt: skip
    values = gradients_of(gradients, begin, num_pieces, COLUMNS, DIM, LANES, BLOCK)
    for block in range(begin, stop):
        later_key, later_line = ids_of(ids, lines, block + 2, num_pieces, COLUMNS, BLOCK)
        next_start, next_other = starts_of(
            next_key, next_line, block + 1, data_1, per_line_1, first_1, offset_1, buckets_1,
            origin_1, data_2, per_line_2, first_2, offset_2, buckets_2, origin_2, num_pieces,
            KIND_1, BITS_1, KIND_2, BITS_2, SOURCES, STRIDE, STEPPED, COLUMNS, DIM, BLOCK,
        )  # fmt: skip
        piece = block * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
        is_piece, column = piece < num_pieces, (piece % COLUMNS).to(tl.int32)
        if CIRCULAR:
            _add_circular(
                gradients, totals, key, start, block, data_1, num_pieces, SIGNED, COLUMNS, DIM,
                LANES, BLOCK, SPLITS,
            )  # fmt: skip
        else:
            next_values = gradients_of(gradients, block + 1, num_pieces, COLUMNS, DIM, LANES, BLOCK)
            if SIGNED:
                values = values * sign_of(key, column, data_1)[:, None]
            sums, is_written = _sums_of_equals(start, values, is_piece, SPLITS)
            is_written = numbers_of(column, is_written, COLUMNS, DIM, LANES)
            _add_to(totals, start[:, None] + lane, sums, is_written)
            if SOURCES == 2:
                sums, is_written = _sums_of_equals(other, values, is_piece, SPLITS)
                is_written = numbers_of(column, is_written, COLUMNS, DIM, LANES)
                _add_to(totals, other[:, None] + lane, sums, is_written)
            values = next_values
        tl.debug_barrier()
        key, start, other = next_key, next_start, next_other
        next_key, next_line = later_key, later_line


@triton.jit(do_not_specialize=["num_lines", "size"])
@no_type_check
def add_totals_kernel(
    totals, out, num_lines, num_totals, size, LINES: tl.constexpr, BLOCK: tl.constexpr
):
    """Add the lines of `totals` in order; what is past `size` belongs to the beginning."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    line = tl.arange(0, LINES)[:, None].to(tl.int64)
    sums = tl.zeros((LINES, BLOCK), tl.float32)
    is_past = (place < num_totals - size) & (place < size)  # a sum may be beyond 2³¹
    for first in range(0, num_lines, LINES):
        at = totals + (first + line) * num_totals + place
        is_line = first + line < num_lines
        sums += tl.load(at, mask=is_line & (place < size), other=0.0)
        sums += tl.load(at + size, mask=is_line & is_past, other=0.0)
    target = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    result = tl.sum(sums, axis=0)
    tl.store(out + target, result.to(out.dtype.element_ty), mask=target < size)
