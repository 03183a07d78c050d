"""A linear layer with a ReLU in training: on CUDA in fewer passes than torch takes.

Torch reads its gradient twice before the products, to keep what passed the ReLU, and to add it up
for the bias.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from outsize.kernels.available import uses_triton


def linear_relu(
    inputs: Float[Tensor, "batch fan_in"],
    weight: Float[Tensor, "fan_out fan_in"],
    bias: Float[Tensor, " fan_out"],
) -> Float[Tensor, "batch fan_out"]:
    """`relu(linear(inputs, weight, bias))`."""
    if not _is_for_triton(inputs, weight, bias):
        return F.relu(F.linear(inputs, weight, bias))
    outputs: Tensor = _LinearReLU.apply(inputs, weight, bias)
    return outputs


def passed_gradients(
    gradients: Float[Tensor, "batch width"], outputs: Float[Tensor, "batch width"]
) -> tuple[Float[Tensor, "batch width"], Float[Tensor, " width"]]:
    """What passes a ReLU of the gradients of its outputs, and the sum of that."""
    passed = gradients.masked_fill(outputs <= 0, 0)
    return passed, passed.sum(dim=0)


def _is_for_triton(inputs: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether there is a gradient that a kernel can compute, in the precision that torch would."""
    return (
        torch.is_grad_enabled()
        and (weight.requires_grad or inputs.requires_grad)
        and uses_triton(inputs, weight, bias)
        and inputs.dim() == 2
        and inputs.numel() > 0
        and inputs.dtype == weight.dtype == bias.dtype == torch.float32
        and not torch.is_autocast_enabled("cuda")
    )


class _LinearReLU(torch.autograd.Function):
    """`linear_relu` by Triton."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from outsize.kernels.linear.linear_relu_triton import (
            is_multiplied_fast,
            linear_relu_by_triton,
        )

        if is_multiplied_fast(inputs, weight):
            outputs = linear_relu_by_triton(inputs, weight, bias)
        else:
            outputs = F.linear(inputs, weight, bias).relu_()
        ctx.save_for_backward(inputs, weight, outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Any:
        inputs, weight, outputs = ctx.saved_tensors
        if torch.is_grad_enabled():  # with a gradient of its own
            passed, of_bias = passed_gradients(gradients, outputs)
        else:
            from outsize.kernels.linear.linear_relu_triton import passed_gradients_by_triton

            passed, of_bias = passed_gradients_by_triton(gradients, outputs)
        needs_inputs, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            passed @ weight if needs_inputs else None,
            passed.t() @ inputs if needs_weight else None,
            of_bias if needs_bias else None,
        )
