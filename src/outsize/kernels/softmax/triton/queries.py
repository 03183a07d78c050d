"""What every query needs before the pass over all items, in one Triton kernel.

The query is scaled and rounded, its exclusions are looked up and sorted.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from outsize.kernels.directory.lookup_triton import row_in


@triton.jit(do_not_specialize=["num_items", "num_long", "num_short"])
@no_type_check
def prepare_queries_kernel(
    queries,
    beta,
    rounded,
    nothing,
    excluded,
    pairs,
    held,
    long_keys,
    long_rows,
    short_keys,
    short_rows,
    num_items,
    num_long,
    num_short,
    DIM: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    LIST: tl.constexpr,
    BY_KEY: tl.constexpr,
    BETA_IN_MEMORY: tl.constexpr,
):
    """Prepare one query.

    Writes β · query in the dtype of `rounded`; 0 into `nothing`, or NaN if the query is not finite;
    and its `WIDTH` exclusions as query · (num_items + 2) + row + 1, in ascending order. With
    `BY_KEY`, exclusions are keys that are looked up first, otherwise rows.
    """
    query = tl.program_id(0).to(tl.int64)
    if BETA_IN_MEMORY:  # noqa: SIM108
        factor = tl.load(beta).to(tl.float32)
    else:
        factor = beta
    zeros = tl.zeros((DEPTH,), dtype=tl.float32)
    for start in range(0, DIM, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        inside = depth < DIM
        part = tl.load(queries + query * DIM + depth, mask=inside, other=0).to(tl.float32) * factor
        part = part.to(rounded.dtype.element_ty)
        tl.store(rounded + query * DIM + depth, part, mask=inside)
        zeros += part.to(tl.float32) * 0.0  # NaN if the query is not finite
    tl.store(nothing + query, tl.sum(zeros, axis=0))
    if WIDTH > 0:
        place = tl.arange(0, LIST)
        row = tl.load(excluded + query * WIDTH + place, mask=place < WIDTH, other=-1)
        if BY_KEY:
            key = row
            row = tl.full((LIST,), -1, tl.int64)
            row = row_in(key, key >= 0, held, long_keys, long_rows, num_long, row)
            row = row_in(key, key >= 0, held, short_keys, short_rows, num_short, row)
        stride = num_items.to(tl.int64) + 2
        pair = query * stride + tl.minimum(tl.maximum(row, -1), num_items) + 1
        if LIST > 1:
            pair = tl.sort(tl.where(place < WIDTH, pair, (query + 1) * stride))
        tl.store(pairs + query * WIDTH + place, pair, mask=place < WIDTH)
