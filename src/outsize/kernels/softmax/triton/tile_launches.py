"""Launching Triton kernels over all tiles of queries × items, and the limits of the device."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from outsize.kernels.launches_triton import ceil_div, launch
from outsize.kernels.launching import num_processors
from outsize.kernels.softmax.scored_items import ScoredItems
from outsize.kernels.softmax.tuning import DeviceLimits, SoftmaxTuning

_DESCRIPTORS = "triton.tools.tensor_descriptor"


@cache
def limits(device: torch.device) -> DeviceLimits:
    """The limits of a device that the sizes of kernels depend on."""
    if device.type != "cuda":  # Triton's interpreter has no limit
        return DeviceLimits(shared_bytes=1 << 20, has_descriptors=False)
    properties: Any = torch.cuda.get_device_properties(device)  # torch's stubs lack some
    has_descriptors = properties.major >= 9 and knows_descriptors()
    return DeviceLimits(int(properties.shared_memory_per_block_optin), has_descriptors)


def knows_descriptors() -> bool:
    """Whether this version of Triton has tensor descriptors, which came with 3.4."""
    return importlib.util.find_spec(_DESCRIPTORS) is not None


def launch_over_tiles(
    kernel: Any,
    queries: Tensor,
    items: ScoredItems,
    tuning: SoftmaxTuning,
    others: Sequence[Tensor | float],
    stride: int,
    matrices: Sequence[Tensor] = (),
    **constants: Any,
) -> None:
    """Launch a kernel over all tiles, with the arguments that all such kernels share.

    Args:
        kernel: Takes queries, vectors, scales, log-weights, others, matrices, and sizes.
        queries: Queries, rounded as the product requires.
        items: Items with contiguous vectors.
        tuning: Sizes of tiles.
        others: Other tensors that it reads and writes, and numbers.
        stride: Stride between the lines of its output.
        matrices: Outputs with one number per query and item, written in halves of tiles.
        constants: Compile-time constants besides the sizes of tiles.
    """
    num_query_tiles = ceil_div(len(queries), tuning.query_tile)
    num_tiles = num_query_tiles * ceil_div(items.num_items, tuning.item_tile)
    num_programs = num_tiles
    if tuning.programs_per_processor:
        num_programs = min(
            num_tiles, tuning.programs_per_processor * num_processors(queries.device)
        )
    left, right, written = queries, items.vectors, list(matrices)
    matrices_used = (left, right, *written)
    descriptors = tuning.descriptors and all(map(has_aligned_rows, matrices_used))
    if descriptors:
        left = descriptor(left, tuning.query_tile, tuning.depth)
        right = descriptor(right, tuning.item_tile, tuning.depth)
        half = tuning.item_tile // 2
        written = [descriptor(each, tuning.query_tile, half) for each in written]
    # Without scales, this placeholder is not read.
    scales = items.log_weights if items.scales is None else items.scales
    launch(
        kernel,
        (num_programs,),
        (
            left,
            right,
            scales.contiguous(),
            items.log_weights.contiguous(),
            *others,
            *written,
            len(queries),
            items.num_items,
            stride,
            num_tiles,
            num_query_tiles,
            num_programs,
        ),
        DIM=queries.shape[1],
        QUERY_TILE=tuning.query_tile,
        ITEM_TILE=tuning.item_tile,
        DEPTH=tuning.depth,
        SCALED=items.scales is not None,
        FLATTEN=tuning.flatten,
        DESCRIPTORS=descriptors,
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
        **constants,
    )


def has_aligned_rows(matrix: Tensor) -> bool:
    """Whether rows are aligned for the tensor memory accelerator."""
    return matrix.data_ptr() % 16 == 0 and matrix.shape[1] * matrix.element_size() % 16 == 0


def descriptor(matrix: Tensor, height: int, width: int) -> Any:
    """A descriptor of a matrix for the tensor memory accelerator, in tiles of a size."""
    return importlib.import_module(_DESCRIPTORS).TensorDescriptor.from_tensor(
        matrix, [height, width]
    )
