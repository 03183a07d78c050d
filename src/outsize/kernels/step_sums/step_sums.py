"""The loss of a training step added to a sum, with a count of the steps before it became NaN.

A device that adds and counts need not be waited for in every step.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from outsize.kernels.available import uses_triton


def add_step(
    losses: Float64[Tensor, ""],
    num_finite: Int64[Tensor, ""],
    loss: Float[Tensor, ""],
    norm: Float[Tensor, ""],
) -> None:
    """Add a loss to `losses`, or NaN if the loss or the norm is not finite.

    Args:
        losses: The sum of losses; changed in place.
        num_finite: The number of steps after which it was finite; changed in place.
        loss: The loss of the step.
        norm: The norm of its gradients.
    """
    is_float32 = loss.dtype == norm.dtype == torch.float32
    if is_float32 and uses_triton(losses, num_finite, loss, norm):
        from outsize.kernels.step_sums.step_sums_triton import add_step_by_triton

        add_step_by_triton(losses, num_finite, loss, norm)
        return
    losses.add_(loss).add_(norm * 0.0)  # 0, or NaN for a norm that is not finite
    num_finite.add_(losses.isfinite())
