"""Updates of rows in place by compiled kernels: row, state and clock in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outsize.kernels.arrays import array, empty, is_plain_float
from outsize.kernels.compiled import compiled
from outsize.kernels.threads import num_parts, run_parts

_LEAST_NUMBERS = 1 << 14  # per thread


@dataclass(frozen=True)
class Lines:
    """Arrays of a table's rows, state and clocks, and of the updates of some of its rows.

    Attributes:
        rows: All rows of the table.
        state: Their optimizer state.
        clocks: Their clocks.
        places: The rows to update, each once.
        gradients: Their gradients.
        ticks: The increments of their clocks.
        squares: The sums that replace squared gradients; without lines if there are none.
    """

    rows: Any
    state: Mapping[str, Any]
    clocks: Any
    places: Any
    gradients: Any
    ticks: Any
    squares: Any


Call = Callable[[Any, Lines], tuple[Any, tuple[Any, ...]]]


def update_in_place(
    call: Call,
    rows: Tensor,
    state: Mapping[str, Tensor],
    clocks: Tensor,
    places: Tensor,
    gradients: Tensor,
    ticks: Tensor,
    squares: Tensor | None,
) -> bool:
    """Update rows by a compiled kernel; returns false, without a change, if none can be used.

    Args:
        call: From the module of kernels and the lines to the kernel and its arguments.
        rows: All rows of a table.
        state: Their optimizer state.
        clocks: Their clocks, int32.
        places: The rows to update, each once.
        gradients: Their gradients.
        ticks: The increments of their clocks.
        squares: What replaces their squared gradients, if anything.
    """
    gradients = gradients.contiguous()
    squares = None if squares is None else squares.contiguous()
    floats = [rows, gradients, *state.values(), *([] if squares is None else [squares])]
    if not is_plain_float(*floats):
        return False
    kernels = compiled("rows.updates_numba")
    if kernels is None:
        return False
    lines = Lines(
        array(rows),
        {name: array(part) for name, part in state.items()},
        array(clocks),
        array(places.contiguous()),
        array(gradients),
        array(ticks.contiguous()),
        empty(0, 1) if squares is None else array(squares),
    )
    kernel, arguments = call(kernels, lines)
    run_parts(kernel, num_parts(gradients.numel(), _LEAST_NUMBERS), *arguments)
    return True


def mean_squares(gradients: Tensor) -> Tensor | None:
    """The mean of the squares of each line; `None` if no compiled kernel can be used."""
    if not is_plain_float(gradients):
        return None
    kernels = compiled("rows.updates_numba")
    if kernels is None:
        return None
    means = torch.empty(gradients.shape[0], 1)
    kernels.mean_squares(array(gradients), array(means))
    return means


def step_in_place(
    call: Call,
    rows: Tensor,
    state: Mapping[str, Tensor],
    gradients: Tensor,
    squares: Tensor | None,
) -> bool:
    """`update_in_place` for all lines of compact tensors, which have no clocks."""
    n = rows.shape[0]
    none = torch.zeros(n, dtype=torch.int64)
    return rows.device.type == "cpu" and update_in_place(
        call, rows, state, none.int(), torch.arange(n), gradients, none, squares
    )
