"""Exact draws from a softmax on CUDA: launching the Triton kernels.

Nothing here synchronizes the device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.kernels.softmax.inversion import systematic_uniforms
from outsize.kernels.softmax.scored_items import Excluded, ScoredItems, SoftmaxDraws, as_lists
from outsize.kernels.softmax.triton.block_masses import block_masses_kernel
from outsize.kernels.softmax.triton.tile_launches import launch_over_tiles, limits, on_device
from outsize.kernels.softmax.triton.tree_draws import (
    draw_kernel,
    group_masses_kernel,
    mask_blocks_kernel,
    pick_groups_kernel,
)
from outsize.kernels.softmax.tuning import SoftmaxTuning, default_tuning, queries_per_pass

_MIN_GROUP = 64
_MAX_GROUPS = 2048
_BLOCKS_PER_PROGRAM = 1024
_DRAW_TILE = 16
_MAX_QUERY_DEPTH = 1024


def draw_by_triton(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    num: int,
    generator: torch.Generator,
    excluded: Excluded = None,
    tuning: SoftmaxTuning | None = None,
    systematic: bool = False,
) -> SoftmaxDraws:
    """`draw_from_softmax` for at least one query and one item, and dim >= 1."""
    num_queries, dim = queries.shape
    tuning = tuning or default_tuning(
        num_queries, items.num_items, dim, items.vectors.dtype, num, limits(queries.device)
    )
    per_pass = queries_per_pass(items.num_items, tuning)
    lists = as_lists(excluded)
    pairs = None if lists is None else lists.pairs(items.num_items)
    if num_queries <= per_pass:
        return _draw(queries, items, num, generator, pairs, 0, tuning, systematic)
    parts = [
        _draw(
            queries[start : start + per_pass],
            items,
            num,
            generator,
            pairs,
            start,
            tuning,
            systematic,
        )
        for start in range(0, num_queries, per_pass)
    ]
    return SoftmaxDraws(
        torch.cat([part.rows for part in parts]),
        torch.cat([part.logits for part in parts]),
        torch.cat([part.log_partition for part in parts]),
    )


def _draw(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    num: int,
    generator: torch.Generator,
    pairs: Int64[Tensor, " num_excluded"] | None,
    first_query: int,
    tuning: SoftmaxTuning,
    systematic: bool,
) -> SoftmaxDraws:
    """Draws for a range of queries; `pairs` are the exclusions of all queries."""
    num_queries, device = len(queries), queries.device
    if not items.vectors.is_contiguous():
        items = replace(items, vectors=items.vectors.contiguous())
    is_float32 = items.vectors.dtype == torch.float32
    queries = queries.contiguous() if is_float32 else queries.bfloat16().contiguous()
    with on_device(queries):
        masses = _block_masses(queries, items, tuning)
        group, num_groups = group_sizes(masses.shape[1])
        # Without scales or exclusions, these placeholders are not read.
        scales = items.log_weights if items.scales is None else items.scales
        if pairs is None:
            pairs = torch.empty(0, dtype=torch.int64, device=device)
        num_excluded = len(pairs)
        inputs = (queries, items.vectors, scales.contiguous(), items.log_weights.contiguous())
        sizes: dict[str, Any] = {
            "DIM": queries.shape[1],
            "DEPTH": tuning.draw_depth,
            "BLOCK": tuning.block,
            "SCALED": items.scales is not None,
            "num_warps": tuning.draw_warps,
        }
        if num_excluded:
            mask_blocks_kernel[(num_excluded,)](
                *inputs,
                pairs,
                masses,
                items.num_items,
                num_excluded,
                first_query,
                num_queries,
                masses.shape[1],
                **sizes,
            )
        groups = masses.new_empty(num_queries, num_groups)
        per_program = max(1, _BLOCKS_PER_PROGRAM // group)
        group_masses_kernel[(num_queries * triton.cdiv(num_groups, per_program),)](
            masses, groups, masses.shape[1], num_groups, GROUP=group, GROUPS=per_program
        )
        if systematic:
            first = systematic_uniforms(num_queries, num, generator)
            uniforms = torch.zeros(num_queries, num, 3, dtype=torch.float64, device=device)
            uniforms[:, :, 0] = first
        else:
            uniforms = torch.rand(
                num_queries, num, 3, dtype=torch.float64, device=device, generator=generator
            )
        picked = torch.empty(num_queries, num, dtype=torch.int32, device=device)
        log_partition = torch.empty(num_queries, device=device)
        pick_groups_kernel[(num_queries,)](
            queries,
            groups,
            uniforms,
            picked,
            log_partition,
            num_groups,
            num,
            DIM=queries.shape[1],
            DEPTH=min(_MAX_QUERY_DEPTH, triton.next_power_of_2(queries.shape[1])),
            GROUPS=max(16, triton.next_power_of_2(num_groups)),
            DRAW_TILE=min(_DRAW_TILE, triton.next_power_of_2(max(1, num))),
            CARRY=systematic,
        )
        rows = torch.empty(num_queries, num, dtype=torch.int64, device=device)
        drawn = torch.empty(num_queries, num, device=device)
        if num:
            draw_kernel[(num_queries * num,)](
                *inputs,
                pairs,
                masses,
                picked,
                uniforms,
                rows,
                drawn,
                items.num_items,
                num_excluded,
                first_query,
                masses.shape[1],
                num,
                GROUP=group,
                CARRY=systematic,
                **sizes,
            )
    return SoftmaxDraws(rows, drawn, log_partition)


def _block_masses(
    queries: Tensor, items: ScoredItems, tuning: SoftmaxTuning
) -> Float32[Tensor, "num_queries num_blocks"]:
    num_blocks = triton.cdiv(items.num_items, tuning.block)
    masses = torch.empty(len(queries), num_blocks, device=queries.device)
    precision = "tf32x3" if items.vectors.dtype == torch.float32 else "tf32"
    constants: dict[str, Any] = {"BLOCK": tuning.block, "PRECISION": precision}
    launch_over_tiles(
        block_masses_kernel, queries, items, tuning, (masses,), num_blocks, **constants
    )
    return masses


def group_sizes(num_blocks: int) -> tuple[int, int]:
    """Blocks per group and the number of groups, balanced so that a draw reads few of each."""
    group = _MIN_GROUP
    while num_blocks > group * _MAX_GROUPS:
        group *= 2
    return group, -(-num_blocks // group)
