"""Sums of gradients by piece in any order, as Triton kernels: fast, but not the same every time."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from outsize.kernels.compositional.blocks_triton import (
    UNSPECIALIZED,
    gradients_of,
    ids_of,
    starts_of,
)
from outsize.kernels.compositional.starts_triton import numbers_of, sign_of


@triton.jit(do_not_specialize=[*UNSPECIALIZED, "num_lines"])
@no_type_check
def scatter_pieces_kernel(
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
    num_lines,
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
):
    """Add the gradients of a block of pieces to a line of `totals`, in any order."""
    block = tl.program_id(0)
    totals += (block % num_lines).to(tl.int64) * num_totals
    key, line = ids_of(ids, lines, block, num_pieces, COLUMNS, BLOCK)
    start, other = starts_of(
        key, line, block, data_1, per_line_1, first_1, offset_1, buckets_1, origin_1, data_2,
        per_line_2, first_2, offset_2, buckets_2, origin_2, num_pieces, KIND_1, BITS_1, KIND_2,
        BITS_2, SOURCES, STRIDE, STEPPED, COLUMNS, DIM, BLOCK,
    )  # fmt: skip
    values = gradients_of(gradients, block, num_pieces, COLUMNS, DIM, LANES, BLOCK)
    piece = block * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    column = (piece % COLUMNS).to(tl.int32)
    is_number = numbers_of(column, piece < num_pieces, COLUMNS, DIM, LANES)
    lane = tl.arange(0, LANES)[None, :]
    if SIGNED:
        values = values * sign_of(key, column, data_1)[:, None]
    place = start[:, None] + lane
    if CIRCULAR:
        place = tl.where(place >= size, place - size, place)
    tl.atomic_add(totals + place, values, mask=is_number, sem="relaxed")
    if SOURCES == 2:
        tl.atomic_add(totals + (other[:, None] + lane), values, mask=is_number, sem="relaxed")
