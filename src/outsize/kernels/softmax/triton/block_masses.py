"""The pass over all items: the log-sum-exp of every query and block, in Triton.

A tile of queries × items is one matrix product on tensor cores. Only the log-sum-exp of each block
is written, so the pass writes less memory than the product itself by a factor of the block size.
The only test per element, for items past the end, is folded into the log-weights.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
@no_type_check
def tile_logits(
    queries,
    vectors,
    scales,
    log_weights,
    num_queries,
    num_items,
    first_query,
    first_item,
    DIM: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    ITEM_TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    SCALED: tl.constexpr,
    PRECISION: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """The logits of a tile in units of log 2, −inf past the last item.

    `queries` and `vectors` are pointers, or tensor descriptors where `DESCRIPTORS`.
    """
    depth = tl.arange(0, DEPTH)
    # Past the end, the last query or item is loaded again: a mask would slow every load.
    of_query = tl.minimum(tl.arange(0, QUERY_TILE), num_queries - 1 - first_query)
    of_item = tl.minimum(tl.arange(0, ITEM_TILE), num_items - 1 - first_item)
    products = tl.zeros((QUERY_TILE, ITEM_TILE), dtype=tl.float32)
    for start in tl.range(0, DIM, DEPTH):
        if DESCRIPTORS:
            query_part = queries.load([first_query, start])
            item_part = vectors.load([first_item, start]).T
        else:
            query_start = queries + first_query.to(tl.int64) * DIM + start
            item_start = vectors + first_item.to(tl.int64) * DIM + start
            query_places = query_start + of_query[:, None] * DIM + depth[None, :]
            item_places = item_start + of_item[None, :] * DIM + depth[:, None]
            if DIM % DEPTH == 0:
                query_part = tl.load(query_places)
                item_part = tl.load(item_places)
            else:
                inside = depth < DIM - start
                query_part = tl.load(query_places, mask=inside[None, :], other=0)
                item_part = tl.load(item_places, mask=inside[:, None], other=0)
        products = tl.dot(
            query_part, item_part.to(query_part.dtype), products, input_precision=PRECISION
        )
    item = first_item + tl.arange(0, ITEM_TILE)
    is_item = item < num_items
    weight = tl.load(log_weights + item, mask=is_item, other=float("-inf")) * LOG2_E
    if SCALED:
        scale = tl.load(scales + item, mask=is_item, other=0.0) * LOG2_E
        logits = products * scale[None, :] + weight[None, :]
    else:
        logits = products * LOG2_E + weight[None, :]
    return logits


@triton.jit(do_not_specialize=["num_queries", "num_items", "num_tiles", "num_query_tiles"])
@no_type_check
def block_masses_kernel(
    queries,
    vectors,
    scales,
    log_weights,
    masses,
    num_queries,
    num_items,
    mass_stride,
    num_tiles,
    num_query_tiles,
    num_programs,
    DIM: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    ITEM_TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALED: tl.constexpr,
    PRECISION: tl.constexpr,
    FLATTEN: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """Write `masses[query, block]`, the natural log-sum-exps.

    Tiles are ordered with queries first, so that neighbouring programs share the items they load.
    """
    program = tl.program_id(0)
    for turn in tl.range(0, tl.cdiv(num_tiles - program, num_programs), flatten=FLATTEN):
        tile = program + turn * num_programs
        first_query = (tile % num_query_tiles) * QUERY_TILE
        first_item = (tile // num_query_tiles) * ITEM_TILE
        logits = tile_logits(
            queries,
            vectors,
            scales,
            log_weights,
            num_queries,
            num_items,
            first_query,
            first_item,
            DIM,
            QUERY_TILE,
            ITEM_TILE,
            DEPTH,
            SCALED,
            PRECISION,
            DESCRIPTORS,
        )
        parts = tl.reshape(logits, (QUERY_TILE, ITEM_TILE // BLOCK, BLOCK))
        peak = tl.max(parts, axis=2)
        peak = tl.where(peak == float("-inf"), 0.0, peak)
        sums = tl.sum(tl.exp2(parts - peak[:, :, None]), axis=2)
        query = first_query + tl.arange(0, QUERY_TILE)
        block = first_item // BLOCK + tl.arange(0, ITEM_TILE // BLOCK)
        tl.store(
            masses + query.to(tl.int64)[:, None] * mass_stride + block[None, :],
            (peak + tl.log2(sums)) * LN_2,
            mask=(query < num_queries)[:, None] & (block < mass_stride)[None, :],
        )
