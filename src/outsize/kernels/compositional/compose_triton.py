"""Vectors from pieces of an array, as a Triton kernel."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from outsize.kernels.compositional.blocks_triton import (
    UNSPECIALIZED,
    ids_of,
    places_of,
    starts_of,
)
from outsize.kernels.compositional.starts_triton import numbers_of, sign_of


@triton.jit(do_not_specialize=UNSPECIALIZED)
@no_type_check
def compose_kernel(
    array,
    out,
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
):
    """Write a block of pieces of vectors: from one source, or the sum of two."""
    block = tl.program_id(0)
    key, line = ids_of(ids, lines, block, num_pieces, COLUMNS, BLOCK)
    start, other = starts_of(
        key, line, block, data_1, per_line_1, first_1, offset_1, buckets_1, origin_1, data_2,
        per_line_2, first_2, offset_2, buckets_2, origin_2, num_pieces, KIND_1, BITS_1, KIND_2,
        BITS_2, SOURCES, STRIDE, STEPPED, COLUMNS, DIM, BLOCK,
    )  # fmt: skip
    piece = block * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    column = (piece % COLUMNS).to(tl.int32)
    is_number = numbers_of(column, piece < num_pieces, COLUMNS, DIM, LANES)
    lane = tl.arange(0, LANES)[None, :]
    place = start[:, None] + lane
    if CIRCULAR:
        place = tl.where(place >= size, place - size, place)
    values = tl.load(array + place, mask=is_number, other=0.0).to(tl.float32)
    if SIGNED:
        values = values * sign_of(key, column, data_1)[:, None]
    if SOURCES == 2:
        more = tl.load(array + (other[:, None] + lane), mask=is_number, other=0.0)
        values += more.to(tl.float32)
    target = places_of(block, COLUMNS, DIM, LANES, BLOCK)
    tl.store(out + target, values.to(out.dtype.element_ty), mask=is_number)
