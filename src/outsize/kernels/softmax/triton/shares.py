"""The mean of items under softmaxes, in two steps: shares of a range of items, then a product.

A share is the probability of an item, as a bfloat16 number. Where a query has a share above a bound
in a tile, what rounding took from its shares of that tile is stored too, and multiplied by a kernel
of its own, which skips tiles without any. If no share is above the bound h, the rounding of the
others adds an error of about 10⁻³·√h times the size of a coordinate to the mean.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from outsize.kernels.softmax.triton.block_masses import LOG2_E, tile_logits


@triton.jit
@no_type_check
def _store_tile(
    matrix,
    tile,
    first_query,
    first_item,
    num_queries,
    num_items,
    stride,
    QUERY_TILE: tl.constexpr,
    ITEM_TILE: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """Write a tile of a matrix, given as a tensor descriptor or a pointer."""
    if DESCRIPTORS:  # in halves, which take half as much shared memory
        halves = tl.permute(tl.reshape(tile, (QUERY_TILE, 2, ITEM_TILE // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        matrix.store([first_query, first_item], left)
        matrix.store([first_query, first_item + ITEM_TILE // 2], right)
    else:
        query = first_query + tl.arange(0, QUERY_TILE)
        item = first_item + tl.arange(0, ITEM_TILE)
        places = query[:, None] * stride + item[None, :]  # below 2³¹ per pass
        is_inside = (query < num_queries)[:, None] & (item < num_items)[None, :]
        tl.store(matrix + places, tile, mask=is_inside)


@triton.jit(do_not_specialize=["num_queries", "num_items", "num_tiles", "num_query_tiles"])
@no_type_check
def softmax_shares_kernel(
    queries,
    vectors,
    scales,
    log_weights,
    log_partition,
    flags,
    heavy,
    coarse,
    rest,
    num_queries,
    num_items,
    share_stride,
    num_tiles,
    num_query_tiles,
    num_programs,
    DIM: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    ITEM_TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    SCALED: tl.constexpr,
    FLATTEN: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """Write `exp(logit − log_partition)`, times the item's scale, as `coarse`.

    If a query has a share above `heavy` in a tile, its `flags[item_tile, query]` is 1, and the rest
    of each of its shares there is in `rest`. Flags have room for whole tiles of queries. With
    `DESCRIPTORS`, `coarse` and `rest` are tensor descriptors of half a tile.
    """
    program = tl.program_id(0)
    for turn in tl.range(0, tl.cdiv(num_tiles - program, num_programs), flatten=FLATTEN):
        tile = program + turn * num_programs
        query_tile, item_tile = tile % num_query_tiles, tile // num_query_tiles
        first_query, first_item = query_tile * QUERY_TILE, item_tile * ITEM_TILE
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
            "tf32",
            DESCRIPTORS,
        )
        query = first_query + tl.arange(0, QUERY_TILE)
        item = first_item + tl.arange(0, ITEM_TILE)
        is_query, is_item = query < num_queries, item < num_items
        whole = tl.load(log_partition + query, mask=is_query, other=float("inf")) * LOG2_E
        shares = tl.exp2(logits - whole[:, None])
        is_heavy = tl.max(shares, axis=1) > heavy
        if SCALED:
            shares *= tl.load(scales + item, mask=is_item, other=0.0)[None, :]
        tl.store(flags + item_tile * num_query_tiles * QUERY_TILE + query, is_heavy.to(tl.int8))
        if tl.max(is_heavy.to(tl.int32), axis=0) > 0:
            taken = shares - shares.to(tl.bfloat16).to(tl.float32)
            _store_tile(
                rest,
                taken.to(tl.bfloat16),
                first_query,
                first_item,
                num_queries,
                num_items,
                share_stride,
                QUERY_TILE,
                ITEM_TILE,
                DESCRIPTORS,
            )
        _store_tile(
            coarse,
            shares.to(tl.bfloat16),
            first_query,
            first_item,
            num_queries,
            num_items,
            share_stride,
            QUERY_TILE,
            ITEM_TILE,
            DESCRIPTORS,
        )


@triton.jit(do_not_specialize=["num_queries", "num_items", "num_item_tiles", "tiles_per_program"])
@no_type_check
def add_rest_kernel(
    rest,
    flags,
    vectors,
    sums,
    num_queries,
    num_items,
    share_stride,
    num_item_tiles,
    tiles_per_program,
    DIM: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    ITEM_TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    FLAGS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Write the product of `rest` and vectors over some item tiles, those that have a flag.

    `sums[part, query, dim]` gets one part per program of the last axis of the grid.
    """
    query_tile, part = tl.program_id(0), tl.program_id(2)
    query = query_tile * QUERY_TILE + tl.arange(0, QUERY_TILE)
    depth = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    first_tile = part * tiles_per_program
    end_tile = tl.minimum(first_tile + tiles_per_program, num_item_tiles)
    total = tl.zeros((QUERY_TILE, WIDTH), dtype=tl.float32)
    line = flags + query_tile * QUERY_TILE + tl.arange(0, QUERY_TILE)
    num_lines = tl.num_programs(0) * QUERY_TILE
    for base in range(first_tile, end_tile, FLAGS):
        place = base + tl.arange(0, FLAGS)
        some = tl.load(
            line[None, :] + place[:, None] * num_lines, mask=(place < end_tile)[:, None], other=0
        )
        if tl.max(tl.max(some.to(tl.int32), axis=1), axis=0) > 0:
            for tile in range(base, tl.minimum(base + FLAGS, end_tile)):
                is_heavy = tl.load(line + tile * num_lines).to(tl.int32)
                if tl.max(is_heavy, axis=0) > 0:
                    for start in range(0, ITEM_TILE, STEP):
                        item = tile * ITEM_TILE + start + tl.arange(0, STEP)
                        is_item = item < num_items
                        shares = tl.load(
                            rest + query[:, None] * share_stride + item[None, :],
                            mask=((query < num_queries) & (is_heavy > 0))[:, None]
                            & is_item[None, :],
                            other=0,
                        )
                        items = tl.load(
                            vectors + item.to(tl.int64)[:, None] * DIM + depth[None, :],
                            mask=is_item[:, None] & (depth < DIM)[None, :],
                            other=0,
                        )
                        total = tl.dot(shares, items.to(tl.bfloat16), total)
    tl.store(
        sums + (part * num_queries + query)[:, None] * DIM + depth[None, :],
        total,
        mask=(query < num_queries)[:, None] & (depth < DIM)[None, :],
    )
