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


@triton.jit
@no_type_check
def _block_logits(
    queries,
    vectors,
    scales,
    log_weights,
    excluded,
    num_items,
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

    `excluded` holds query · (num_items + 2) + row + 1 in ascending order. Each item of the block is
    found by binary search, so the length of a query's list hardly matters.
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
            found = tl.load(excluded + middle, mask=middle < high, other=0)
            is_below = (found < wanted) & (middle < high)
            low = tl.where(is_below, middle + 1, low)
            high = tl.where(is_below, high, middle)
            left = left // 2
        found = tl.load(excluded + low, mask=low < num_excluded, other=0)
        logits = tl.where(found == wanted, float("-inf"), logits)
    return logits


@triton.jit
@no_type_check
def _masses(log_masses):
    """Masses in float64, the largest about 1, and their cumulative sum."""
    masses = tl.exp(log_masses - tl.max(log_masses, axis=0)).to(tl.float64)
    return masses, tl.cumsum(masses, axis=0)


@triton.jit
@no_type_check
def _pick(log_masses, uniform, LENGTH: tl.constexpr):
    """An index in proportion to `exp(log_masses)`, never one without mass; −1 if none has any."""
    masses, sums = _masses(log_masses)
    place = tl.arange(0, LENGTH)
    has_mass = masses > 0
    # By rounding, a parallel sum may grow where no mass is added, and the target may reach the
    # total. Hence the tests of mass, and the last index with mass as a bound.
    passed = has_mass & (sums > uniform * tl.sum(masses, axis=0))
    first = tl.min(tl.where(passed, place, LENGTH), axis=0)
    return tl.minimum(first, tl.max(tl.where(has_mass, place, -1), axis=0))


@triton.jit
@no_type_check
def _rest(log_masses, uniform, picked, LENGTH: tl.constexpr):
    """Where in the mass of the picked index the number lies, in [0, 1)."""
    masses, sums = _masses(log_masses)
    is_picked = tl.arange(0, LENGTH) == picked
    mass = tl.sum(tl.where(is_picked, masses, 0.0), axis=0)
    before = tl.sum(tl.where(is_picked, sums - masses, 0.0), axis=0)
    rest = (uniform * tl.sum(masses, axis=0) - before) / tl.where(mass > 0, mass, 1.0)
    return tl.minimum(tl.maximum(rest, 0.0), 1 - 2.0**-53)


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
):
    """Recompute the mass of the block of one excluded row, without all excluded rows.

    If a block has several exclusions, which are adjacent, the program of the first does the work.
    """
    place = tl.program_id(0).to(tl.int64)
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
            num_excluded,
            first_query,
            query,
            block,
            DIM,
            DEPTH,
            BLOCK,
            SCALED,
        )
        peak = tl.max(logits, axis=0)
        peak = tl.where(peak == float("-inf"), 0.0, peak)
        mass = peak + tl.log(tl.sum(tl.exp(logits - peak), axis=0))
        tl.store(masses + query * mass_stride + block, mass)


@triton.jit(do_not_specialize=["num_groups"])
@no_type_check
def group_masses_kernel(
    masses, groups, num_blocks, num_groups, GROUP: tl.constexpr, GROUPS: tl.constexpr
):
    """Write the log-sum-exp of each group of blocks; a program handles some groups of a query."""
    programs = tl.cdiv(num_groups, GROUPS)
    query = (tl.program_id(0) // programs).to(tl.int64)
    group = (tl.program_id(0) % programs) * GROUPS + tl.arange(0, GROUPS)
    block = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    log_masses = tl.load(
        masses + query * num_blocks + block, mask=block < num_blocks, other=float("-inf")
    )
    peak = tl.max(log_masses, axis=1)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    mass = peak + tl.log(tl.sum(tl.exp(log_masses - peak[:, None]), axis=1))
    tl.store(groups + query * num_groups + group, mass, mask=group < num_groups)


@triton.jit(do_not_specialize=["num_groups", "num"])
@no_type_check
def pick_groups_kernel(
    queries,
    groups,
    uniforms,
    picked,
    log_partition,
    num_groups,
    num,
    DIM: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUPS: tl.constexpr,
    DRAW_TILE: tl.constexpr,
    CARRY: tl.constexpr,
):
    """Write the log-partition of one query, and the group of each of its draws, as in `_pick`.

    For a non-finite query the log-partition is NaN and the groups are −1. With `CARRY`, what is
    left of a draw's first uniform number replaces its second.
    """
    query = tl.program_id(0).to(tl.int64)
    nothing = tl.zeros((DEPTH,), dtype=tl.float32)
    for start in range(0, DIM, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        query_part = tl.load(queries + query * DIM + depth, mask=depth < DIM, other=0)
        nothing += query_part.to(tl.float32) * 0.0  # NaN if the query is not finite
    place = tl.arange(0, GROUPS)
    log_masses = tl.load(
        groups + query * num_groups + place, mask=place < num_groups, other=float("-inf")
    )
    masses, sums = _masses(log_masses)
    total = tl.sum(masses, axis=0)
    mass = tl.max(log_masses, axis=0) + tl.log(total).to(tl.float32)
    num_others = tl.sum((log_masses != float("-inf")).to(tl.int32), axis=0)  # NaN is one
    mass = tl.where(num_others > 0, mass, float("-inf")) + tl.sum(nothing, axis=0)
    tl.store(log_partition + query, mass)
    has_mass = tl.where(mass == mass, masses, 0.0) > 0
    last = tl.max(tl.where(has_mass, place, -1), axis=0)
    for start in range(0, num, DRAW_TILE):
        which = start + tl.arange(0, DRAW_TILE)
        pair = query * num + which
        uniform = tl.load(uniforms + pair * 3, mask=which < num, other=0.0)
        passed = has_mass[None, :] & (sums[None, :] > (uniform * total)[:, None])
        first = tl.minimum(tl.min(tl.where(passed, place[None, :], GROUPS), axis=1), last)
        tl.store(picked + pair, first, mask=which < num)
        if CARRY:
            is_picked = place[None, :] == first[:, None]
            mass = tl.sum(tl.where(is_picked, masses[None, :], 0.0), axis=1)
            before = tl.sum(tl.where(is_picked, (sums - masses)[None, :], 0.0), axis=1)
            rest = (uniform * total - before) / tl.where(mass > 0, mass, 1.0)
            rest = tl.minimum(tl.maximum(rest, 0.0), 1 - 2.0**-53)
            tl.store(uniforms + pair * 3 + 1, rest, mask=which < num)


@triton.jit(do_not_specialize=["num_items", "num_excluded", "first_query", "num"])
@no_type_check
def draw_kernel(
    queries,
    vectors,
    scales,
    log_weights,
    excluded,
    masses,
    picked,
    uniforms,
    rows,
    drawn,
    num_items,
    num_excluded,
    first_query,
    num_blocks,
    num,
    DIM: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    CARRY: tl.constexpr,
):
    """One draw from a picked group: writes its row and logit, or −1 and −inf if there is none."""
    pair = tl.program_id(0).to(tl.int64)
    query = pair // num
    group = tl.load(picked + pair)
    is_drawn = group >= 0
    blocks = tl.maximum(group, 0) * GROUP + tl.arange(0, GROUP)
    log_masses = tl.load(
        masses + query * num_blocks + blocks, mask=blocks < num_blocks, other=float("-inf")
    )
    uniform = tl.load(uniforms + pair * 3 + 1)
    inside = _pick(log_masses, uniform, GROUP)
    if CARRY:  # noqa: SIM108
        last = _rest(log_masses, uniform, inside, GROUP)
    else:
        last = tl.load(uniforms + pair * 3 + 2)
    is_drawn &= inside >= 0
    block = tl.where(is_drawn, group * GROUP + inside, 0)
    logits = _block_logits(
        queries,
        vectors,
        scales,
        log_weights,
        excluded,
        num_items,
        num_excluded,
        first_query,
        query,
        block,
        DIM,
        DEPTH,
        BLOCK,
        SCALED,
    )
    chosen = _pick(logits, last, BLOCK)
    is_drawn &= chosen >= 0
    logit = tl.max(tl.where(tl.arange(0, BLOCK) == chosen, logits, float("-inf")), axis=0)
    tl.store(rows + pair, tl.where(is_drawn, block.to(tl.int64) * BLOCK + chosen, -1))
    tl.store(drawn + pair, tl.where(is_drawn, logit, float("-inf")))
