"""The probability (share) of each item in each query's softmax, for a range of items, in Triton.

A share is stored as two bfloat16 numbers, so that products on tensor cores use 16 bits of it.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from outsize.kernels.softmax.triton.block_masses import LOG2_E, tile_logits


@triton.jit(do_not_specialize=["num_queries", "num_items", "num_tiles", "num_query_tiles"])
@no_type_check
def softmax_shares_kernel(
    queries,
    vectors,
    scales,
    log_weights,
    log_partition,
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
    """Write `exp(logit − log_partition)`, times the item's scale, as `coarse + rest`.

    With `DESCRIPTORS`, both are tensor descriptors, like queries and vectors.
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
            "tf32",
            DESCRIPTORS,
        )
        query = first_query + tl.arange(0, QUERY_TILE)
        item = first_item + tl.arange(0, ITEM_TILE)
        is_query, is_item = query < num_queries, item < num_items
        whole = tl.load(log_partition + query, mask=is_query, other=0.0) * LOG2_E
        shares = tl.exp2(logits - whole[:, None])
        if SCALED:
            shares *= tl.load(scales + item, mask=is_item, other=0.0)[None, :]
        first = shares.to(tl.bfloat16)
        second = (shares - first.to(tl.float32)).to(tl.bfloat16)
        if DESCRIPTORS:
            coarse.store([first_query, first_item], first)
            rest.store([first_query, first_item], second)
        else:
            places = query[:, None] * share_stride + item[None, :]  # below 2³¹ per pass
            is_inside = is_query[:, None] & is_item[None, :]
            tl.store(coarse + places, first, mask=is_inside)
            tl.store(rest + places, second, mask=is_inside)
