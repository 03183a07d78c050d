"""Exact draws from a softmax on CUDA: launching the Triton kernels.

Nothing here waits for the device.
"""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Any

import torch
import triton
from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.kernels.scored_items import ScoredItems, SoftmaxDraws
from outsize.kernels.softmax_tuning import (
    DeviceLimits,
    SoftmaxTuning,
    default_tuning,
    queries_at_a_time,
)
from outsize.kernels.triton_block_masses import block_masses_kernel
from outsize.kernels.triton_tree_draws import (
    draw_kernel,
    group_masses_kernel,
    mask_blocks_kernel,
    pick_groups_kernel,
)

_LEAST_GROUP = 64
_MAX_GROUPS = 2048
_BLOCKS_OF_A_GROUP_PROGRAM = 1024
_DRAWS_AT_A_TIME = 16
_NUMBERS_OF_A_QUERY = 1024


def draw_by_triton(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    num: int,
    generator: torch.Generator,
    excluded: Int64[Tensor, "num_queries num_excluded"] | None = None,
    tuning: SoftmaxTuning | None = None,
) -> SoftmaxDraws:
    """`draw_from_softmax` for at least one query, number of a vector and item."""
    num_queries, dim = queries.shape
    tuning = tuning or default_tuning(
        num_queries, items.num_items, dim, items.vectors.dtype, num, limits(queries.device)
    )
    at_a_time = queries_at_a_time(items.num_items, tuning)
    if num_queries <= at_a_time:
        return _draw(queries, items, num, generator, excluded, tuning)
    parts = [
        _draw(
            queries[start : start + at_a_time],
            items,
            num,
            generator,
            None if excluded is None else excluded[start : start + at_a_time],
            tuning,
        )
        for start in range(0, num_queries, at_a_time)
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
    excluded: Int64[Tensor, "num_queries num_excluded"] | None,
    tuning: SoftmaxTuning,
) -> SoftmaxDraws:
    num_queries, device = len(queries), queries.device
    vectors = items.vectors.contiguous()
    is_float32 = vectors.dtype == torch.float32
    queries = queries.contiguous() if is_float32 else queries.bfloat16().contiguous()
    on_device = torch.cuda.device(device) if queries.is_cuda else contextlib.nullcontext()
    with on_device:
        masses = _block_masses(queries, vectors, items, tuning)
        group, num_groups = group_sizes(masses.shape[1])
        # Nothing is read from these where there are no scales or exclusions.
        scales = items.log_weights if items.scales is None else items.scales
        if excluded is None:
            excluded = torch.empty(num_queries, 0, dtype=torch.int64, device=device)
        excluded, num_excluded = excluded.contiguous(), excluded.shape[1]
        inputs = (queries, vectors, scales.contiguous(), items.log_weights.contiguous())
        sizes: dict[str, Any] = {
            "DIM": queries.shape[1],
            "DEPTH": tuning.draw_depth,
            "BLOCK": tuning.block,
            "SCALED": items.scales is not None,
            "num_warps": tuning.draw_warps,
        }
        if num_excluded:
            mask_blocks_kernel[(num_queries * num_excluded,)](
                *inputs,
                excluded,
                masses,
                items.num_items,
                num_excluded,
                masses.shape[1],
                **sizes,
            )
        groups = masses.new_empty(num_queries, num_groups)
        at_a_time = max(1, _BLOCKS_OF_A_GROUP_PROGRAM // group)
        group_masses_kernel[(num_queries * triton.cdiv(num_groups, at_a_time),)](
            masses, groups, masses.shape[1], num_groups, GROUP=group, GROUPS=at_a_time
        )
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
            DEPTH=min(_NUMBERS_OF_A_QUERY, triton.next_power_of_2(queries.shape[1])),
            GROUPS=max(16, triton.next_power_of_2(num_groups)),
            AT_A_TIME=min(_DRAWS_AT_A_TIME, triton.next_power_of_2(max(1, num))),
        )
        rows = torch.empty(num_queries, num, dtype=torch.int64, device=device)
        drawn = torch.empty(num_queries, num, device=device)
        if num:
            draw_kernel[(num_queries * num,)](
                *inputs,
                excluded,
                masses,
                picked,
                uniforms,
                rows,
                drawn,
                items.num_items,
                num_excluded,
                masses.shape[1],
                num,
                GROUP=group,
                **sizes,
            )
    return SoftmaxDraws(rows, drawn, log_partition)


def _block_masses(
    queries: Tensor, vectors: Tensor, items: ScoredItems, tuning: SoftmaxTuning
) -> Float32[Tensor, "num_queries num_blocks"]:
    num_queries, dim = queries.shape
    masses = torch.empty(
        num_queries, triton.cdiv(items.num_items, tuning.block), device=queries.device
    )
    num_query_tiles = triton.cdiv(num_queries, tuning.query_tile)
    num_tiles = num_query_tiles * triton.cdiv(items.num_items, tuning.item_tile)
    num_programs = num_tiles
    if tuning.programs_per_processor:
        processors = _processors(queries.device)
        num_programs = min(num_tiles, tuning.programs_per_processor * processors)
    left, right = queries, vectors
    descriptors = tuning.descriptors and all(_can_be_described(each) for each in (left, right))
    if descriptors:
        left = _descriptor(queries, tuning.query_tile, tuning.depth)
        right = _descriptor(vectors, tuning.item_tile, tuning.depth)
    scales = items.log_weights if items.scales is None else items.scales
    block_masses_kernel[(num_programs,)](
        left,
        right,
        scales.contiguous(),
        items.log_weights.contiguous(),
        masses,
        num_queries,
        items.num_items,
        masses.shape[1],
        num_tiles,
        num_query_tiles,
        num_programs,
        DIM=dim,
        QUERY_TILE=tuning.query_tile,
        ITEM_TILE=tuning.item_tile,
        DEPTH=tuning.depth,
        BLOCK=tuning.block,
        SCALED=items.scales is not None,
        PRECISION="tf32x3" if vectors.dtype == torch.float32 else "tf32",
        FLATTEN=tuning.flatten,
        DESCRIPTORS=descriptors,
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
    )
    return masses


def group_sizes(num_blocks: int) -> tuple[int, int]:
    """Blocks of a group and the number of groups, so that a draw reads few numbers of each."""
    group = _LEAST_GROUP
    while num_blocks > group * _MAX_GROUPS:
        group *= 2
    return group, -(-num_blocks // group)


def _can_be_described(matrix: Tensor) -> bool:
    """Whether rows start where the tensor memory accelerator can load them."""
    return matrix.data_ptr() % 16 == 0 and matrix.shape[1] * matrix.element_size() % 16 == 0


def _descriptor(matrix: Tensor, height: int, width: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(matrix, [height, width])


@cache
def limits(device: torch.device) -> DeviceLimits:
    """What the sizes of the kernels depend on."""
    if device.type != "cuda":  # the interpreter has no bound
        return DeviceLimits(shared_bytes=1 << 20, has_descriptors=False)
    properties: Any = torch.cuda.get_device_properties(device)  # torch's stubs lack some
    return DeviceLimits(int(properties.shared_memory_per_block_optin), properties.major >= 9)


@cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
