"""The mean of items of a small dim under softmaxes, in one pass over the items, in Triton.

A program holds the sums of a tile of queries in registers, and takes a part of the items: shares
are computed and multiplied without being written. The parts are added afterwards.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from outsize.kernels.softmax.triton.block_masses import LOG2_E


@triton.jit
@no_type_check
def _shares_and_items(
    query_part,
    vectors,
    scales,
    log_weights,
    excluded,
    whole,
    query,
    num_queries,
    first_item,
    num_items,
    DIM: tl.constexpr,
    DEPTH: tl.constexpr,
    ITEM_TILE: tl.constexpr,
    SCALED: tl.constexpr,
    EXCLUDED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """The shares of a tile before scaling, its items in bfloat16, and what shares are scaled by."""
    item = first_item + tl.arange(0, ITEM_TILE)
    is_item = item < num_items
    if DESCRIPTORS:
        items = vectors.load([first_item, 0])
    else:
        depth = tl.arange(0, DEPTH)
        places = vectors + item.to(tl.int64)[:, None] * DIM + depth[None, :]
        items = tl.load(places, mask=is_item[:, None] & (depth < DIM)[None, :], other=0)
    items = items.to(tl.bfloat16)
    products = tl.dot(query_part, items.T)
    weight = tl.load(log_weights + item, mask=is_item, other=float("-inf")) * LOG2_E
    if SCALED:
        scale = tl.load(scales + item, mask=is_item, other=0.0)
        logits = products * (scale * LOG2_E)[None, :] + weight[None, :]
    else:
        scale = tl.full((ITEM_TILE,), 1.0, tl.float32)
        logits = products * LOG2_E + weight[None, :]
    shares = tl.exp2(logits - whole[:, None])
    for place in tl.static_range(EXCLUDED):
        row = tl.load(excluded + query * EXCLUDED + place, mask=query < num_queries, other=-1)
        shares = tl.where(item[None, :] == row[:, None], 0.0, shares)
    return shares, items, scale


@triton.jit(do_not_specialize=["num_queries", "num_items", "tiles_per_program"])
@no_type_check
def fused_mean_kernel(
    queries,
    vectors,
    scales,
    log_weights,
    log_partition,
    excluded,
    flags,
    heavy,
    sums,
    num_queries,
    num_items,
    tiles_per_program,
    DIM: tl.constexpr,
    DEPTH: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    ITEM_TILE: tl.constexpr,
    SCALED: tl.constexpr,
    EXCLUDED: tl.constexpr,
    PARTS: tl.constexpr,
    FLAGS: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """Write `sums[part, query, dim]`, the sums over the items of one program.

    With `PARTS` of 2, a share is multiplied as two bfloat16 numbers. With 1 it is rounded to one,
    and `flags[item_tile, query]` says whether a share of the tile is above `heavy`. With 0, only
    what that rounding took is multiplied, of tiles with a flag. `excluded` has `EXCLUDED` rows per
    query. Flags have room for whole tiles of queries, and are looked at `FLAGS` tiles at a time.
    With `DESCRIPTORS`, `vectors` is a tensor descriptor.
    """
    first_query = tl.program_id(0) * QUERY_TILE
    query = first_query + tl.arange(0, QUERY_TILE)
    depth = tl.arange(0, DEPTH)
    inside = (query < num_queries)[:, None] & (depth < DIM)[None, :]
    query_part = tl.load(queries + query[:, None] * DIM + depth[None, :], mask=inside, other=0)
    whole = tl.load(log_partition + query, mask=query < num_queries, other=float("inf")) * LOG2_E
    total = tl.zeros((QUERY_TILE, DEPTH), dtype=tl.float32)
    num_tiles = tl.cdiv(num_items, ITEM_TILE)
    first_tile = tl.program_id(1) * tiles_per_program
    end_tile = tl.minimum(first_tile + tiles_per_program, num_tiles)
    line_width = (tl.num_programs(0) * QUERY_TILE).to(tl.int64)  # tiles of it may exceed 2³¹
    if PARTS == 0:
        for base in range(first_tile, end_tile, FLAGS):
            place = base + tl.arange(0, FLAGS)
            places = flags + (place[:, None] * line_width + query[None, :])
            some = tl.load(places, mask=(place < end_tile)[:, None], other=0).to(tl.int32)
            if tl.max(tl.max(some, axis=1), axis=0) > 0:
                for tile in range(base, tl.minimum(base + FLAGS, end_tile)):
                    is_heavy = tl.load(flags + (tile * line_width + query)).to(tl.int32)
                    if tl.max(is_heavy, axis=0) > 0:
                        shares, items, scale = _shares_and_items(
                            query_part,
                            vectors,
                            scales,
                            log_weights,
                            excluded,
                            whole,
                            query,
                            num_queries,
                            tile * ITEM_TILE,
                            num_items,
                            DIM,
                            DEPTH,
                            ITEM_TILE,
                            SCALED,
                            EXCLUDED,
                            DESCRIPTORS,
                        )
                        shares = tl.where(is_heavy[:, None] > 0, shares * scale[None, :], 0.0)
                        rest = shares - shares.to(tl.bfloat16).to(tl.float32)
                        total = tl.dot(rest.to(tl.bfloat16), items, total)
    else:
        for tile in range(first_tile, end_tile):
            shares, items, scale = _shares_and_items(
                query_part,
                vectors,
                scales,
                log_weights,
                excluded,
                whole,
                query,
                num_queries,
                tile * ITEM_TILE,
                num_items,
                DIM,
                DEPTH,
                ITEM_TILE,
                SCALED,
                EXCLUDED,
                DESCRIPTORS,
            )
            if PARTS == 1:
                is_heavy = tl.max(shares, axis=1) > heavy
                tl.store(flags + (tile * line_width + query), is_heavy.to(tl.int8))
            if SCALED:
                shares *= scale[None, :]
            rounded = shares.to(tl.bfloat16)
            total = tl.dot(rounded, items, total)
            if PARTS == 2:
                rest = (shares - rounded.to(tl.float32)).to(tl.bfloat16)
                total = tl.dot(rest, items, total)
    line = tl.program_id(1).to(tl.int64) * num_queries + query
    tl.store(sums + line[:, None] * DIM + depth[None, :], total, mask=inside)
