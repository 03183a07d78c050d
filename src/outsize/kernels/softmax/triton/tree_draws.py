"""The steps after the pass over all items, in Triton: exclusions, groups of blocks, and draws.

A draw descends a tree: it picks a group of blocks, a block and an item, each by inverting a
cumulative sum in float64 (see `inversion`). That takes one random number per level and none per
item, so there is no noise whose tail could be cut. The logits of a drawn block are recomputed.
With `CARRY`, the number of a level is what the level above left of its own (`pick_with_rest`).
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from outsize.kernels.softmax.triton.picks import (
    log_sum,
    pick,
    pick_mass,
    relative_masses,
    rest_of,
)


@triton.jit
@no_type_check
def _block_logits(
    queries,
    vectors,
    scales,
    log_weights,
    excluded,
    num_items,
    first_excluded,
    num_excluded,
    first_query,
    query,
    block,
    DIM: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALED: tl.constexpr,
):
    """The logits of a block, −inf for items that are excluded for this query.

    `excluded` holds query · (num_items + 2) + row + 1 in ascending order; those of this query are
    among the `num_excluded` from `first_excluded` on. Each item of the block is found by binary
    search, so the length of a query's list hardly matters.
    """
    item = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_item = item < num_items
    products = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, DIM, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        inside = depth < DIM
        query_part = tl.load(queries + query * DIM + depth, mask=inside, other=0).to(tl.float32)
        places = vectors + item[:, None] * DIM + depth[None, :]
        item_part = tl.load(places, mask=is_item[:, None] & inside[None, :], other=0).to(tl.float32)
        products += tl.sum(item_part * query_part[None, :], axis=1)
    if SCALED:
        products *= tl.load(scales + item, mask=is_item, other=0.0)
    logits = products + tl.load(log_weights + item, mask=is_item, other=float("-inf"))
    if num_excluded > 0:
        wanted = (first_query + query) * (num_items.to(tl.int64) + 2) + item + 1
        low = tl.zeros((BLOCK,), dtype=tl.int64)
        high = tl.zeros((BLOCK,), dtype=tl.int64) + num_excluded
        left = num_excluded
        while left > 0:
            middle = (low + high) // 2
            found = tl.load(excluded + first_excluded + middle, mask=middle < high, other=0)
            is_below = (found < wanted) & (middle < high)
            low = tl.where(is_below, middle + 1, low)
            high = tl.where(is_below, high, middle)
            left = left // 2
        found = tl.load(excluded + first_excluded + low, mask=low < num_excluded, other=0)
        logits = tl.where(found == wanted, float("-inf"), logits)
    return logits


@triton.jit(do_not_specialize=["num_items", "num_excluded", "first_query", "num_queries"])
@no_type_check
def mask_blocks_kernel(
    queries,
    vectors,
    scales,
    log_weights,
    excluded,
    masses,
    num_items,
    num_excluded,
    first_query,
    num_queries,
    mass_stride,
    DIM: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Recompute the mass of the block of one excluded row, without all excluded rows.

    If a block has several exclusions, which are adjacent, the program of the first does the work.
    If `WIDTH` is not 0, each query has so many exclusions.
    """
    place = tl.program_id(0).to(tl.int64)
    if WIDTH > 0:
        first_excluded, num_searched = place // WIDTH * WIDTH, WIDTH
    else:
        first_excluded, num_searched = place * 0, num_excluded
    stride = num_items.to(tl.int64) + 2
    pair = tl.load(excluded + place)
    before = tl.load(excluded + place - 1, mask=place > 0, other=-1)
    query, row = pair // stride - first_query, pair % stride - 1
    block = row // BLOCK
    row_before = before % stride - 1
    is_first = (before // stride != pair // stride) | (row_before // BLOCK != block)
    is_first |= (before < 0) | (row_before < 0)
    if (row >= 0) & (row < num_items) & (query >= 0) & (query < num_queries) & is_first:
        logits = _block_logits(
            queries,
            vectors,
            scales,
            log_weights,
            excluded,
            num_items,
            first_excluded,
            num_searched,
            first_query,
            query,
            block,
            DIM,
            DEPTH,
            BLOCK,
            SCALED,
        )
        tl.store(masses + query * mass_stride + block, log_sum(logits, 0))


@triton.jit(do_not_specialize=["num_blocks", "num_groups"])
@no_type_check
def group_masses_kernel(
    masses, groups, num_blocks, num_groups, GROUP: tl.constexpr, GROUPS: tl.constexpr
):
    """Write the log-sum-exp of each group of blocks; a program handles some groups of a query."""
    programs = tl.cdiv(num_groups, GROUPS)
    query = (tl.program_id(0) // programs).to(tl.int64)
    group = (tl.program_id(0) % programs) * GROUPS + tl.arange(0, GROUPS)
    blocks = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    log_masses = tl.load(
        masses + query * num_blocks + blocks, mask=blocks < num_blocks, other=float("-inf")
    )
    tl.store(groups + query * num_groups + group, log_sum(log_masses, 1), mask=group < num_groups)


@triton.jit(
    do_not_specialize=[
        "num_items",
        "num_excluded",
        "first_query",
        "num_blocks",
        "num_groups",
        "num",
        "clock",
    ]
)
@no_type_check
def draw_kernel(
    queries,
    vectors,
    scales,
    log_weights,
    excluded,
    nothing,
    masses,
    groups,
    uniforms,
    rows,
    drawn,
    log_partition,
    held,
    encoded_at,
    keys,
    ages,
    embeddings,
    spare_uniforms,
    num_items,
    num_excluded,
    first_query,
    num_blocks,
    num_groups,
    num,
    clock,
    DIM: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALED: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    CARRY: tl.constexpr,
    HELD: tl.constexpr,
    ROW_DEPTH: tl.constexpr,
):
    """One draw of a query: writes its row and logit, or −1 and −inf if there is none.

    The first draw also writes the log-partition, NaN for a query that is not finite. With `HELD`,
    each draw copies its item: key, age and embedding.
    """
    pair = tl.program_id(0).to(tl.int64)
    query = pair // tl.maximum(num, 1)
    turn = pair % tl.maximum(num, 1)
    if CARRY:
        uniform = tl.load(uniforms + query) + turn.to(tl.float64) / tl.maximum(num, 1)
        uniform -= tl.floor(uniform)
    else:
        uniform = tl.load(uniforms + pair * 4, mask=num > 0, other=0.0)
    place = tl.arange(0, GROUPS)
    log_masses = tl.load(
        groups + query * num_groups + place, mask=place < num_groups, other=float("-inf")
    )
    group_masses, sums = relative_masses(log_masses)
    total = tl.sum(group_masses, axis=0)
    mass = tl.max(log_masses, axis=0) + tl.log(total).to(tl.float32)
    num_others = tl.sum((log_masses != float("-inf")).to(tl.int32), axis=0)  # NaN is one
    mass = tl.where(num_others > 0, mass, float("-inf")) + tl.load(nothing + query)
    if turn == 0:
        tl.store(log_partition + query, mass)
    if num > 0:
        group_masses = tl.where(mass == mass, group_masses, 0.0)
        group = pick_mass(group_masses, sums, uniform, GROUPS)
        is_drawn = group >= 0
        blocks = tl.maximum(group, 0) * GROUP + tl.arange(0, GROUP)
        block_masses = tl.load(
            masses + query * num_blocks + blocks, mask=blocks < num_blocks, other=float("-inf")
        )
        if CARRY:
            uniform = rest_of(log_masses, uniform, group, GROUPS)
        else:
            uniform = tl.load(uniforms + pair * 4 + 1)
        inside = pick(block_masses, uniform, GROUP)
        if CARRY:
            last = rest_of(block_masses, uniform, inside, GROUP)
        else:
            last = tl.load(uniforms + pair * 4 + 2)
        is_drawn &= inside >= 0
        block = tl.where(is_drawn, group * GROUP + inside, 0)
        if WIDTH > 0:
            first_excluded, num_searched = query * WIDTH, WIDTH
        else:
            first_excluded, num_searched = query * 0, num_excluded
        logits = _block_logits(
            queries,
            vectors,
            scales,
            log_weights,
            excluded,
            num_items,
            first_excluded,
            num_searched,
            first_query,
            query,
            block,
            DIM,
            DEPTH,
            BLOCK,
            SCALED,
        )
        chosen = pick(logits, last, BLOCK)
        is_drawn &= chosen >= 0
        logit = tl.max(tl.where(tl.arange(0, BLOCK) == chosen, logits, float("-inf")), axis=0)
        row = tl.where(is_drawn, block.to(tl.int64) * BLOCK + chosen, -1)
        tl.store(rows + pair, row)
        tl.store(drawn + pair, tl.where(is_drawn, logit, float("-inf")))
        if HELD:
            item = tl.maximum(row, 0)
            tl.store(keys + pair, tl.where(is_drawn, tl.load(held + item), -1))
            tl.store(ages + pair, tl.where(is_drawn, clock - tl.load(encoded_at + item), 0))
            if not CARRY:  # 24 bits, so that rounding to float32 does not reach 1
                spare = tl.floor(tl.load(uniforms + pair * 4 + 3) * 16777216.0) / 16777216.0
                tl.store(spare_uniforms + pair, spare.to(tl.float32))
            for start in range(0, DIM, ROW_DEPTH):
                depth = start + tl.arange(0, ROW_DEPTH)
                is_inside = depth < DIM
                part = tl.load(vectors + item * DIM + depth, mask=is_inside, other=0)
                part = part.to(tl.float32)
                if SCALED:
                    part *= tl.load(scales + item)
                tl.store(embeddings + pair * DIM + depth, part, mask=is_inside)
