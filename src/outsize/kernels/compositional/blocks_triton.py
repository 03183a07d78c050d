"""Blocks of pieces in Triton: their ids, where they begin, where they are in vectors.

Block b has the pieces from `b · BLOCK` on, of all vectors of a batch.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from outsize.kernels.compositional.starts_triton import edge_of, find_starts, numbers_of

UNSPECIALIZED = [
    *(f"{name}_{k}" for name in ("per_line", "first", "offset", "buckets") for k in (1, 2)),
    "num_pieces",
    "size",
]


@triton.jit
@no_type_check
def ids_of(ids, lines, block, num_pieces, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """The id and the line of each piece of a block."""
    piece = block * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    is_piece, vector = piece < num_pieces, piece // COLUMNS
    return (
        tl.load(ids + vector, mask=is_piece, other=0),
        tl.load(lines + vector, mask=is_piece, other=0),
    )


@triton.jit
@no_type_check
def starts_of(
    ids,
    lines,
    block,
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
    KIND_1: tl.constexpr,
    BITS_1: tl.constexpr,
    KIND_2: tl.constexpr,
    BITS_2: tl.constexpr,
    SOURCES: tl.constexpr,
    STRIDE: tl.constexpr,
    STEPPED: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Where the pieces of a block begin: those of the first source, and of the second."""
    piece = block * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    is_piece, column = piece < num_pieces, (piece % COLUMNS).to(tl.int32)
    start = find_starts(
        ids, lines, column, is_piece, data_1, per_line_1, first_1, offset_1, buckets_1, origin_1,
        KIND_1, BITS_1, STRIDE, STEPPED, COLUMNS, DIM,
    )  # fmt: skip
    other = start
    if SOURCES == 2:
        other = find_starts(
            ids, lines, column, is_piece, data_2, per_line_2, first_2, offset_2, buckets_2,
            origin_2, KIND_2, BITS_2, STRIDE, STEPPED, COLUMNS, DIM,
        )  # fmt: skip
    return start, other


@triton.jit
@no_type_check
def places_of(
    block, COLUMNS: tl.constexpr, DIM: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr
):
    """Where the pieces of a block are in all vectors."""
    piece = block * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    lane = tl.arange(0, LANES)[None, :]
    if DIM % COLUMNS == 0:
        places = (piece * (DIM // COLUMNS))[:, None] + lane
    else:
        column = (piece % COLUMNS).to(tl.int32)
        places = (piece // COLUMNS * DIM + edge_of(column, COLUMNS, DIM))[:, None] + lane
    return places


@triton.jit
@no_type_check
def gradients_of(
    gradients,
    block,
    num_pieces,
    COLUMNS: tl.constexpr,
    DIM: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradients of a block of pieces."""
    piece = block * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    column = (piece % COLUMNS).to(tl.int32)
    is_number = numbers_of(column, piece < num_pieces, COLUMNS, DIM, LANES)
    places = places_of(block, COLUMNS, DIM, LANES, BLOCK)
    return tl.load(gradients + places, mask=is_number, other=0.0).to(tl.float32)
