"""The sizes of the CUDA kernels that draw from a softmax, in one place so that they can be swept.

They change how long a draw takes and what it holds, never what is drawn from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

_MAX_MASS_BYTES = 1 << 27
_LEAST_BLOCK = 32
_FEW_DRAWS = 2048


@dataclass(frozen=True)
class SoftmaxTuning:
    """Sizes of the pass over all items and of the tree that draws go down.

    Attributes:
        query_tile: Queries of a tile; a power of 2, at least 16.
        item_tile: Items of a tile; a power of 2, at least 16.
        depth: Numbers of each vector that are multiplied at a time; a power of 2, at least 16.
        num_warps: Warps of a program.
        num_stages: Loads under way at a time.
        block: Items of a block, whose log-sum-exp is kept; a power of 2, at most `item_tile`.
            Half of it halves the time of each draw and doubles what is kept.
        programs_per_processor: Programs that each take many tiles in turn; 0: one a tile.
        flatten: Whether such a program loads the next tile while it ends one.
        descriptors: Whether tiles are loaded by the tensor memory accelerator (Hopper and later);
            vectors then need a multiple of 16 bytes.
        draw_depth: Numbers of each vector that a draw reads at a time; a power of 2.
        draw_warps: Warps of a draw.
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
    """What sizes depend on.

    Attributes:
        shared_bytes: Memory that the warps of a program share, at most.
        has_descriptors: Whether there is a tensor memory accelerator.
    """

    shared_bytes: int
    has_descriptors: bool


@lru_cache(maxsize=256)
def default_tuning(
    num_queries: int, num_items: int, dim: int, dtype: torch.dtype, num: int, limits: DeviceLimits
) -> SoftmaxTuning:
    """Sizes for draws of `num` items for each query, as measured on an H200.

    Args:
        num_queries: Queries of a call.
        num_items: Items of a call.
        dim: Numbers of each vector.
        dtype: Of the items' vectors.
        num: Draws of a query.
        limits: Of the device.
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
    # What a draw reads at a time should stay in registers.
    draw_depth = (1 << 12 if dtype == torch.float32 else 1 << 13) // block
    # Few draws wait for memory alone, so more of it should be asked for at a time.
    draw_warps = 8 if num_queries * max(1, num) <= _FEW_DRAWS else 4
    return replace(tuning, block=block, draw_depth=draw_depth, draw_warps=draw_warps)


def queries_at_a_time(num_items: int, tuning: SoftmaxTuning) -> int:
    """How many queries have little to keep of all blocks, in whole tiles and at least one."""
    bytes_of_a_query = 4 * -(-num_items // tuning.block)
    tiles = _MAX_MASS_BYTES // (bytes_of_a_query * tuning.query_tile)
    return max(1, tiles) * tuning.query_tile


def _with_descriptors(num_queries: int, dim: int, dtype: torch.dtype) -> SoftmaxTuning:
    """Two or three small programs on a processor: one multiplies while others take exponentials."""
    tuning = SoftmaxTuning(128, 128, 64, 4, 3, flatten=True, descriptors=True)
    if dtype == torch.float32:
        return replace(tuning, depth=32, num_warps=8, programs_per_processor=1)
    # Where few queries share what is read of an item, more of it has to be under way.
    if dtype == torch.int8 or (num_queries <= 256 < dim):
        return replace(tuning, programs_per_processor=2)
    return replace(tuning, num_stages=2, programs_per_processor=3)


def _block(num_items: int, vector_bytes: int, num: int) -> int:
    """Items of a block, so that keeping blocks costs about as much as what draws read of them."""
    balanced = (10 * num_items / (max(1, num) * vector_bytes)) ** 0.5
    return 1 << round(math.log2(max(balanced, _LEAST_BLOCK)))


def _shared_bytes(tuning: SoftmaxTuning, dtype: torch.dtype) -> int:
    """What the loads under way hold, about."""
    queries = tuning.query_tile * (4 if dtype == torch.float32 else 2)
    items = tuning.item_tile * {torch.float32: 4, torch.bfloat16: 2, torch.int8: 3}[dtype]
    return (queries + items) * tuning.depth * tuning.num_stages
