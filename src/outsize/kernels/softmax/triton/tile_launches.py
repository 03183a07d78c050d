"""Launching Triton kernels: what the device has, and a kernel over all tiles of queries × items."""

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
    """What the sizes of kernels depend on."""
    if device.type != "cuda":  # the interpreter has no bound
        return DeviceLimits(shared_bytes=1 << 20, has_descriptors=False)
    properties: Any = torch.cuda.get_device_properties(device)  # torch's stubs lack some
    return DeviceLimits(int(properties.shared_memory_per_block_optin), properties.major >= 9)


def on_device(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Where kernels that read this tensor are to be launched."""
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
    """Launch a kernel that takes tiles in turns, with what all such kernels take.

    Args:
        kernel: Takes queries, vectors, scales, log-weights, others, matrices, and sizes.
        queries: Rounded as their products need them.
        items: The vectors must be contiguous.
        tuning: Sizes of tiles.
        others: What else it reads and writes.
        stride: From a line of what it writes to the next.
        matrices: What it writes a number to for every query and item.
        constants: What it is compiled for beside the sizes of tiles.
    """
    num_query_tiles = triton.cdiv(len(queries), tuning.query_tile)
    num_tiles = num_query_tiles * triton.cdiv(items.num_items, tuning.item_tile)
    num_programs = num_tiles
    if tuning.programs_per_processor:
        num_programs = min(num_tiles, tuning.programs_per_processor * _processors(queries.device))
    left, right, written = queries, items.vectors, list(matrices)
    described = (left, right, *written)
    descriptors = tuning.descriptors and all(_can_be_described(each) for each in described)
    if descriptors:
        left = _descriptor(left, tuning.query_tile, tuning.depth)
        right = _descriptor(right, tuning.item_tile, tuning.depth)
        written = [_descriptor(each, tuning.query_tile, tuning.item_tile) for each in written]
    # Nothing is read from these where there are no scales.
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


def _can_be_described(matrix: Tensor) -> bool:
    """Whether rows start where the tensor memory accelerator can load them."""
    return matrix.data_ptr() % 16 == 0 and matrix.shape[1] * matrix.element_size() % 16 == 0


def _descriptor(matrix: Tensor, height: int, width: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(matrix, [height, width])


@cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
