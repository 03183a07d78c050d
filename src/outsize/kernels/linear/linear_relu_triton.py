"""`passed_gradients` in one Triton kernel, which reads gradients once.

Every program adds up some lines of some columns; the sums of all programs are added afterwards, so
the order never changes.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from outsize.kernels.launches_triton import ceil_div, launch, power_of_two
from outsize.kernels.launching import num_processors, on_device

_NUMBERS = 4096  # that a program holds at a time
_MOST_COLUMNS = 128
_PROGRAMS = 4  # per processor


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
