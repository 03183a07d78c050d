"""Launching Triton kernels over all tiles of queries × items, and the limits of the device."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from outsize.kernels.softmax.scored_items import ScoredItems
from outsize.kernels.softmax.tuning import DeviceLimits, SoftmaxTuning


@cache
def limits(device: torch.device) -> DeviceLimits:
    """The limits of a device that the sizes of kernels depend on."""
    if device.type != "cuda":  # Triton's interpreter has no limit
        return DeviceLimits(shared_bytes=1 << 20, has_descriptors=False)
    properties: Any = torch.cuda.get_device_properties(device)  # torch's stubs lack some
    return DeviceLimits(int(properties.shared_memory_per_block_optin), properties.major >= 9)


def on_device(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """A context in which kernels are launched on the device of a tensor."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(tensor.device)


def launch_over_tiles(
    kernel: Any,
    queries: Tensor,
    items: ScoredItems,
    tuning: SoftmaxTuning,
    others: Sequence[Tensor],
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
        others: Other tensors that it reads and writes.
        stride: Stride between the lines of its output.
        matrices: Outputs with one number per query and item.
        constants: Compile-time constants besides the sizes of tiles.
    """
    num_query_tiles = triton.cdiv(len(queries), tuning.query_tile)
    num_tiles = num_query_tiles * triton.cdiv(items.num_items, tuning.item_tile)
    num_programs = num_tiles
    if tuning.programs_per_processor:
        num_programs = min(num_tiles, tuning.programs_per_processor * _processors(queries.device))
    left, right, written = queries, items.vectors, list(matrices)
    matrices_used = (left, right, *written)
    descriptors = tuning.descriptors and all(map(_has_aligned_rows, matrices_used))
    if descriptors:
        left = _descriptor(left, tuning.query_tile, tuning.depth)
        right = _descriptor(right, tuning.item_tile, tuning.depth)
        written = [_descriptor(each, tuning.query_tile, tuning.item_tile) for each in written]
    # Without scales, this placeholder is not read.
    scales = items.log_weights if items.scales is None else items.scales
    kernel[(num_programs,)](
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


def _has_aligned_rows(matrix: Tensor) -> bool:
    """Whether rows are aligned for the tensor memory accelerator."""
    return matrix.data_ptr() % 16 == 0 and matrix.shape[1] * matrix.element_size() % 16 == 0


def _descriptor(matrix: Tensor, height: int, width: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(matrix, [height, width])


@cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
