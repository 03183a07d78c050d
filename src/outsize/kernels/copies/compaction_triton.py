"""`marked_places` on CUDA, as one kernel: each program counts what is marked before its block.

So a mask of n lines is read n / 2048 times, which takes less than a second launch would while the
mask is as long as a batch. `MOST_LINES` is where that ends.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.kernels.launches_triton import launch
from outsize.kernels.launching import on_device

MOST_LINES = 1 << 17
_BLOCK_SIZE = 1024
_READ_AT_ONCE = 4096


def marked_places_by_triton(mask: Bool[Tensor, " n"], num: int) -> Int64[Tensor, " num"]:
    """The places of the marked lines, ascending; `num` is their number, at least 1."""
    n = mask.shape[0]
    places = torch.empty(num, dtype=torch.int64, device=mask.device)
    with on_device(mask):
        launch(
            marked_kernel, (-(-n // _BLOCK_SIZE),),
            (mask.contiguous(), places, n, num),
            BLOCK_SIZE=_BLOCK_SIZE, READ_AT_ONCE=_READ_AT_ONCE,
        )  # fmt: skip
    return places


@triton.jit(do_not_specialize=["n", "num"])
@no_type_check
def marked_kernel(mask, places, n, num, BLOCK_SIZE: tl.constexpr, READ_AT_ONCE: tl.constexpr):
    """Write the places of the marked lines of one block."""
    start = tl.program_id(0) * BLOCK_SIZE
    counted = tl.zeros([READ_AT_ONCE], tl.int32)
    for first in range(0, start, READ_AT_ONCE):
        lane = first + tl.arange(0, READ_AT_ONCE)
        counted += (tl.load(mask + lane, mask=lane < start, other=0) != 0).to(tl.int32)
    lane = start + tl.arange(0, BLOCK_SIZE)
    is_marked = (lane < n) & (tl.load(mask + lane, mask=lane < n, other=0) != 0)
    place = tl.sum(counted, axis=0) + tl.cumsum(is_marked.to(tl.int32), axis=0) - 1
    tl.store(places + place, lane.to(tl.int64), mask=is_marked & (place < num))
