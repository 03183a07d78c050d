"""`step_sums` on CUDA: one kernel instead of eight, in steps that are made of small kernels."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from outsize.kernels.launches_triton import launch
from outsize.kernels.launching import on_device


def add_step_by_triton(
    losses: Float64[Tensor, ""],
    num_finite: Int64[Tensor, ""],
    loss: Float32[Tensor, ""],
    norm: Float32[Tensor, ""],
) -> None:
    """`step_sums.add_step`, with the same bits unless the sum is NaN."""
    with on_device(losses):
        launch(
            add_step_kernel, (1,),
            (losses, num_finite, loss, norm),
            num_warps=1,
        )  # fmt: skip


@triton.jit
@no_type_check
def add_step_kernel(losses, num_finite, loss, norm):
    """Add one step."""
    total = tl.load(losses) + tl.load(loss).to(tl.float64) + tl.load(norm).to(tl.float64) * 0.0
    count = tl.load(num_finite) + (total * 0.0 == 0.0).to(tl.int64)
    tl.debug_barrier()  # all threads have read before one writes
    tl.store(losses, total)
    tl.store(num_finite, count)
