"""The sizes of the CUDA kernels that draw from a softmax, in one place so that they can be swept.

They change how long a draw takes and what it holds, never what is drawn from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

_MAX_MASS_BYTES = 1 << 27


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


def default_tuning(
    num_queries: int, num_items: int, dtype: torch.dtype, shared_bytes: int
) -> SoftmaxTuning:
    """Sizes for this many queries and items.

    Args:
        num_queries: Queries of a call.
        num_items: Items of a call.
        dtype: Of the items' vectors.
        shared_bytes: Memory that the programs of a processor share.
    """
    tuning = SoftmaxTuning()
    if dtype == torch.float32:
        tuning = replace(tuning, item_tile=128, depth=32)
    if dtype == torch.int8:
        tuning = replace(tuning, item_tile=128)
    while tuning.query_tile > 16 and tuning.query_tile >= 2 * num_queries:
        tuning = replace(tuning, query_tile=tuning.query_tile // 2)
    if tuning.query_tile <= 32:
        tuning = replace(tuning, num_warps=4)
    while _shared_bytes(tuning, dtype) > shared_bytes and tuning.item_tile > 64:
        tuning = replace(tuning, item_tile=tuning.item_tile // 2, num_warps=4)
    while _shared_bytes(tuning, dtype) > shared_bytes and tuning.num_stages > 1:
        tuning = replace(tuning, num_stages=tuning.num_stages - 1)
    block = tuning.block
    while block < tuning.item_tile and num_queries * num_items * 4 // block > _MAX_MASS_BYTES:
        block *= 2
    # What a draw reads at a time should stay in registers.
    draw_depth = (1 << 12 if dtype == torch.float32 else 1 << 13) // block
    return replace(tuning, block=block, draw_depth=draw_depth)


def _shared_bytes(tuning: SoftmaxTuning, dtype: torch.dtype) -> int:
    """What the loads under way hold, about."""
    queries = tuning.query_tile * (4 if dtype == torch.float32 else 2)
    items = tuning.item_tile * {torch.float32: 4, torch.bfloat16: 2, torch.int8: 3}[dtype]
    return (queries + items) * tuning.depth * tuning.num_stages
