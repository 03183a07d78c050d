"""Linear layers with a ReLU, and `passed_gradients`, in one Triton kernel each.

Products of float32 are three products of TF32 on tensor cores, which together are more exact than a
sum in float32, and take two thirds of the time of torch's. Gradients are read once: every program
adds up some lines of some columns, and the sums of all programs are added afterwards, so that the
order never changes.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from outsize.kernels.full_precision import is_full_precision
from outsize.kernels.launches_triton import ceil_div, launch, power_of_two
from outsize.kernels.launching import num_processors, on_device

_NUMBERS = 4096  # that a program holds at a time
_MOST_COLUMNS = 128
_PROGRAMS = 4  # per processor
_DEPTH, _WIDTH = 32, 64  # of the product of a layer: terms at a time, and columns of a program


def linear_relu_by_triton(
    inputs: Float[Tensor, "batch fan_in"],
    weight: Float[Tensor, "fan_out fan_in"],
    bias: Float[Tensor, " fan_out"],
) -> Float[Tensor, "batch fan_out"]:
    """`linear_relu` for sizes that `is_multiplied_fast` takes."""
    (batch, fan_in), fan_out = inputs.shape, weight.shape[0]
    outputs = inputs.new_empty(batch, fan_out)
    blocks = fan_out // _WIDTH
    lines = 128 if ceil_div(batch, 128) * blocks > num_processors(inputs.device) else 64
    with on_device(inputs):
        launch(
            linear_relu_kernel,
            (ceil_div(batch, lines) * blocks,),
            (inputs.contiguous(), weight.contiguous(), bias.contiguous(), outputs, batch),
            FAN_IN=fan_in,
            FAN_OUT=fan_out,
            LINES=lines,
            DEPTH=_DEPTH,
            WIDTH=_WIDTH,
            num_warps=4,
            num_stages=3,
        )
    return outputs


def is_multiplied_fast(inputs: Tensor, weight: Tensor) -> bool:
    """Whether `linear_relu_by_triton` takes these sizes, and less time than torch.

    Other GPUs than Hopper's and later have fewer tensor cores, and smaller batches too few lines.
    """
    if not is_full_precision(inputs):  # torch's products of TF32 take less
        return False
    fan_out, fan_in = weight.shape
    is_cut = fan_in % _DEPTH == 0 and fan_out % _WIDTH == 0
    if not inputs.is_cuda:  # Triton's interpreter
        return is_cut
    is_large = len(inputs) * fan_out >= 64 * _WIDTH * num_processors(inputs.device) // 2
    return is_cut and is_large and torch.cuda.get_device_capability(inputs.device) >= (9, 0)


def passed_gradients_by_triton(
    gradients: Float[Tensor, "batch width"], outputs: Float[Tensor, "batch width"]
) -> tuple[Float[Tensor, "batch width"], Float[Tensor, " width"]]:
    """`passed_gradients` of at least one gradient."""
    num_lines, width = gradients.shape
    columns = min(_MOST_COLUMNS, power_of_two(width))
    lines = _NUMBERS // columns
    num_blocks = ceil_div(width, columns)
    wanted = ceil_div(_PROGRAMS * num_processors(gradients.device), num_blocks)
    per_program = ceil_div(ceil_div(num_lines, lines), wanted) * lines
    num_parts = ceil_div(num_lines, per_program)
    passed = torch.empty_like(gradients, memory_format=torch.contiguous_format)
    sums = gradients.new_empty(num_parts, width)
    with on_device(gradients):
        launch(
            passed_gradients_kernel,
            (num_blocks, num_parts),
            (
                gradients.contiguous(),
                outputs.contiguous(),
                passed,
                sums,
                num_lines,
                width,
                per_program,
            ),
            LINES=lines,
            COLUMNS=columns,
        )
    return passed, sums.sum(dim=0)


@triton.jit(do_not_specialize=["batch"])
@no_type_check
def linear_relu_kernel(
    inputs,
    weight,
    bias,
    outputs,
    batch,
    FAN_IN: tl.constexpr,
    FAN_OUT: tl.constexpr,
    LINES: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Write a tile of the outputs; neighbouring programs read the same inputs."""
    blocks = FAN_OUT // WIDTH
    line = tl.program_id(0) // blocks * LINES + tl.arange(0, LINES)
    column = tl.program_id(0) % blocks * WIDTH + tl.arange(0, WIDTH)
    depth = tl.arange(0, DEPTH)
    # Past the end, the last line is read again: a mask would slow every load.
    own = tl.minimum(line, batch - 1).to(tl.int64)
    found = tl.zeros((LINES, WIDTH), tl.float32)
    for start in range(0, FAN_IN, DEPTH):
        left = tl.load(inputs + own[:, None] * FAN_IN + (start + depth)[None, :])
        right = tl.load(weight + column[None, :] * FAN_IN + (start + depth)[:, None])
        found = tl.dot(left, right, found, input_precision="tf32x3")
    found += tl.load(bias + column)[None, :]
    found = tl.where(found <= 0, 0.0, found)  # NaN stays
    places = line.to(tl.int64)[:, None] * FAN_OUT + column[None, :]
    tl.store(outputs + places, found, mask=(line < batch)[:, None])


@triton.jit(do_not_specialize=["num_lines", "per_program"])
@no_type_check
def passed_gradients_kernel(
    gradients,
    outputs,
    passed,
    sums,
    num_lines,
    width,
    per_program,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write what passes of some lines and columns, and its sums by column."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(1) * per_program
    end = tl.minimum(first + per_program, num_lines)
    totals = tl.zeros((LINES, COLUMNS), tl.float32)
    for start in range(first, end, LINES):
        line = start + tl.arange(0, LINES).to(tl.int64)
        places = line[:, None] * width + column[None, :]
        is_inside = (line < end)[:, None] & (column < width)[None, :]
        found = tl.load(gradients + places, mask=is_inside, other=0)
        output = tl.load(outputs + places, mask=is_inside, other=0)
        found = tl.where(output <= 0, 0.0, found)
        tl.store(passed + places, found, mask=is_inside)
        totals += found
    tl.store(sums + tl.program_id(1) * width + column, tl.sum(totals, axis=0), mask=column < width)
