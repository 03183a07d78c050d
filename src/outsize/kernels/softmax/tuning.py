"""Launch sizes of the CUDA kernels that draw from a softmax.

They affect the time and memory of a draw, never its distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

_MAX_MASS_BYTES = 1 << 27
_MIN_BLOCK = 32
_FEW_DRAWS = 2048
_DEPTH_OF_MANY = 64


@dataclass(frozen=True)
class SoftmaxTuning:
    """Sizes of the pass over all items, and of the tree that draws descend.

    Attributes:
        query_tile: Queries per tile; a power of 2, at least 16.
        item_tile: Items per tile; a power of 2, at least 16.
        depth: Elements of each vector per multiplication step; a power of 2, at least 16.
        num_warps: Warps per program.
        num_stages: Pipeline stages: loads in flight.
        block: Items per block, whose log-sum-exp is stored; a power of 2, at most `item_tile`.
            Halving it halves the time of each draw and doubles the memory of the log-sum-exps.
        programs_per_processor: Persistent programs per processor, which each process many tiles;
            0 for one program per tile.
        flatten: Whether a persistent program loads the next tile while it finishes one.
        descriptors: Whether tiles are loaded by the tensor memory accelerator (Hopper and later);
            the size of vectors must then be a multiple of 16 bytes.
        draw_depth: Elements of each vector that a draw reads per step; a power of 2.
        draw_warps: Warps per draw.
    """

    query_tile: int = 128
    item_tile: int = 256
    depth: int = 64
    num_warps: int = 8
    num_stages: int = 3
    block: int = 64
    programs_per_processor: int = 0
    flatten: bool = False
    descriptors: bool = False
    draw_depth: int = 128
    draw_warps: int = 4


@dataclass(frozen=True)
class DeviceLimits:
    """The limits of a device that sizes depend on.

    Attributes:
        shared_bytes: Maximum shared memory per program.
        has_descriptors: Whether the device has a tensor memory accelerator.
    """

    shared_bytes: int
    has_descriptors: bool


@lru_cache(maxsize=256)
def default_tuning(
    num_queries: int, num_items: int, dim: int, dtype: torch.dtype, num: int, limits: DeviceLimits
) -> SoftmaxTuning:
    """Sizes for `num` draws per query, tuned on an H200.

    Args:
        num_queries: Queries per call.
        num_items: Items per call.
        dim: Width of the vectors.
        dtype: Dtype of the items' vectors.
        num: Draws per query.
        limits: Limits of the device.
    """
    tuning = SoftmaxTuning()
    if limits.has_descriptors:
        tuning = _with_descriptors(num_queries, dim, dtype)
    elif dtype == torch.float32:
        tuning = replace(tuning, item_tile=128, depth=32)
    elif dtype == torch.int8:
        tuning = replace(tuning, item_tile=128)
    while tuning.query_tile > 16 and tuning.query_tile >= 2 * num_queries:
        tuning = replace(tuning, query_tile=tuning.query_tile // 2)
    if tuning.query_tile <= 32:
        tuning = replace(tuning, num_warps=4)
    while _shared_bytes(tuning, dtype) > limits.shared_bytes and tuning.item_tile > 64:
        tuning = replace(tuning, item_tile=tuning.item_tile // 2, num_warps=4)
    while _shared_bytes(tuning, dtype) > limits.shared_bytes and tuning.num_stages > 1:
        tuning = replace(tuning, num_stages=tuning.num_stages - 1)
    block = min(tuning.item_tile, _block(num_items, dim * dtype.itemsize, num))
    if num_queries * max(1, num) <= _FEW_DRAWS:
        # They are bound by memory latency, so each should have more loads in flight, as many as fit
        # in registers.
        draw_depth, draw_warps = (1 << 12 if dtype == torch.float32 else 1 << 13) // block, 8
    else:  # as many draws as possible should be under way
        draw_depth, draw_warps = _DEPTH_OF_MANY, max(2, _DEPTH_OF_MANY * block >> 11)
    return replace(tuning, block=block, draw_depth=draw_depth, draw_warps=draw_warps)


def queries_per_pass(num_items: int, tuning: SoftmaxTuning) -> int:
    """The number of queries whose log-sum-exps fit a memory limit, in whole tiles, at least one."""
    bytes_per_query = 4 * -(-num_items // tuning.block)
    tiles = _MAX_MASS_BYTES // (bytes_per_query * tuning.query_tile)
    return max(1, tiles) * tuning.query_tile


def _with_descriptors(num_queries: int, dim: int, dtype: torch.dtype) -> SoftmaxTuning:
    """Two or three small programs per processor: one multiplies while others exponentiate."""
    tuning = SoftmaxTuning(128, 128, 64, 4, 3, flatten=True, descriptors=True)
    if dtype == torch.float32:
        return replace(tuning, depth=32, num_warps=8, programs_per_processor=1)
    # If few queries share the loads of an item, more loads must be in flight.
    if dtype == torch.int8 or (num_queries <= 256 < dim):
        return replace(tuning, programs_per_processor=2)
    return replace(tuning, num_stages=2, programs_per_processor=3)


def _block(num_items: int, vector_bytes: int, num: int) -> int:
    """Items per block, such that storing blocks costs about as much as reading them in draws."""
    balanced = (10 * num_items / (max(1, num) * vector_bytes)) ** 0.5
    return 1 << round(math.log2(max(balanced, _MIN_BLOCK)))


def _shared_bytes(tuning: SoftmaxTuning, dtype: torch.dtype) -> int:
    """The approximate shared memory of the loads in flight."""
    queries = tuning.query_tile * (4 if dtype == torch.float32 else 2)
    items = tuning.item_tile * {torch.float32: 4, torch.bfloat16: 2, torch.int8: 3}[dtype]
    return (queries + items) * tuning.depth * tuning.num_stages
